#include "base/socket.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace spc {

Result<std::pair<UniqueFd, UniqueFd>> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return Error::from_errno(errno, "create a socket pair");
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

Result<void> send_message(int socket, std::span<const std::byte> message,
                          std::span<const int> descriptors, WhenFull when_full) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptorsPerMessage)];
  msghdr header{.msg_iov = &part, .msg_iovlen = 1};
  if (descriptors.size() > kMaxDescriptorsPerMessage)
    return Error(ErrorKind::internal, "too many descriptors for one message");
  if (!descriptors.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    if (::sendmsg(socket, &header,
                  MSG_NOSIGNAL | (when_full == WhenFull::fail ? MSG_DONTWAIT : 0)) >= 0)
      return {};
    if (errno != EINTR) return Error::from_errno(errno, "send a message");
  }
}

Result<std::vector<UniqueFd>> receive_message(int socket, std::span<std::byte> buffer,
                                              std::size_t most, int how) {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptorsPerMessage)];
  // Not CMSG_SPACE: its padding would have room for a second descriptor.
  const std::size_t room =
      most == 0 ? 0 : CMSG_LEN(sizeof(int) * std::min(most, kMaxDescriptorsPerMessage));
  msghdr header{.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
  ssize_t size = -1;
  while ((size = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | how)) < 0 && errno == EINTR)
    continue;
  if (size < 0) return Error::from_errno(errno, "receive a message");

  std::vector<UniqueFd> descriptors;
  for (cmsghdr* rights = CMSG_FIRSTHDR(&header); rights != nullptr;
       rights = CMSG_NXTHDR(&header, rights)) {
    if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
    // Of the only such list, since the kernel creates no other.
    const int* const first = reinterpret_cast<const int*>(CMSG_DATA(rights));
    descriptors =
        std::vector<UniqueFd>(first, first + (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
    return Error(ErrorKind::internal, "a message that is too long, or has too many descriptors");
  if (size == 0) return Error(ErrorKind::unavailable, "peer closed the connection");
  if (static_cast<std::size_t>(size) != buffer.size())
    return Error(ErrorKind::internal, "message has an unexpected size");
  return descriptors;
}

}  // namespace spc
