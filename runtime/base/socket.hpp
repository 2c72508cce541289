#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// The kernel passes at most 253 descriptors in one message (SCM_MAX_FD).
inline constexpr std::size_t kMaxDescriptorsPerMessage = 253;

/// Creates two connected AF_UNIX SEQPACKET sockets, close-on-exec.
Result<std::pair<UniqueFd, UniqueFd>> socket_pair();

/// Behaviour of a send while the peer has unread messages.
enum class WhenFull { wait, fail };

/// Sends one message with descriptors; the caller keeps its own. An Error if the peer has closed
/// the socket.
Result<void> send_message(int socket, std::span<const std::byte> message,
                          std::span<const int> descriptors, WhenFull when_full = WhenFull::wait);

/// Receives one message that fills `buffer`, and at most `most` descriptors, close-on-exec. The
/// kernel drops further descriptors, so this process need not close them, which could block on the
/// server of their file system. A larger message or more descriptors are an Error. `how`: MSG_PEEK
/// leaves the message in the socket, for another receiver.
Result<std::vector<UniqueFd>> receive_message(int socket, std::span<std::byte> buffer,
                                              std::size_t most, int how = 0);

/// Sends a plain struct of fixed size, which needs no parsing.
template <typename Message>
Result<void> send_struct(int socket, const Message& message, std::span<const int> descriptors = {},
                         WhenFull when_full = WhenFull::wait) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return send_message(socket, std::as_bytes(std::span(&message, 1)), descriptors, when_full);
}

/// Receives exactly one Message, with at most `most` descriptors. End of file is
/// ErrorKind::unavailable, another size is ErrorKind::internal.
template <typename Message>
Result<std::vector<UniqueFd>> receive_struct(int socket, Message& message, std::size_t most = 0,
                                             int how = 0) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return receive_message(socket, std::as_writable_bytes(std::span(&message, 1)), most, how);
}

}  // namespace spc
