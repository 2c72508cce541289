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

/// Two connected AF_UNIX SEQPACKET sockets, close-on-exec.
Result<std::pair<UniqueFd, UniqueFd>> socket_pair();

/// What sending does while the peer has unread messages.
enum class WhenFull { wait, fail };

/// Sends one message with descriptors; the caller keeps its own. A peer that is gone is an Error.
Result<void> send_message(int socket, std::span<const std::byte> message,
                          std::span<const int> descriptors, WhenFull when_full = WhenFull::wait);

/// Receives one message that fills `buffer`, and no more than `most` descriptors, close-on-exec:
/// others never become this process's own, so that it need not close them, which can take as long
/// as the server of their file system likes. More of either is an Error.
Result<std::vector<UniqueFd>> receive_message(int socket, std::span<std::byte> buffer,
                                              std::size_t most);

/// Messages are plain structs of fixed size: nothing to parse.
template <typename Message>
Result<void> send_struct(int socket, const Message& message, std::span<const int> descriptors = {},
                         WhenFull when_full = WhenFull::wait) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return send_message(socket, std::as_bytes(std::span(&message, 1)), descriptors, when_full);
}

/// Receives exactly one Message, with at most so many descriptors. End of file is
/// ErrorKind::unavailable, another size is ErrorKind::internal.
template <typename Message>
Result<std::vector<UniqueFd>> receive_struct(int socket, Message& message, std::size_t most = 0) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return receive_message(socket, std::as_writable_bytes(std::span(&message, 1)), most);
}

}  // namespace spc
