#include "base/listener.hpp"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>

namespace spc {

namespace {

std::optional<std::uint16_t> port_in(std::string_view text) {
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && number >= 1024
             ? std::optional(number)
             : std::nullopt;
}

}  // namespace

std::optional<PortRange> PortRange::parse(std::string_view text) {
  if (text.empty()) return PortRange();
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto first = port_in(text.substr(0, dash)), last = port_in(text.substr(dash + 1));
  if (!first || !last || *first > *last) return std::nullopt;
  return PortRange{*first, *last};
}

Result<Listener> Listener::open(const PortRange& ports, const std::optional<ListenAddress>& at) {
  // Use one socket for both. Without IPv6 such a socket cannot be created.
  const bool both = ::access("/proc/net/if_inet6", F_OK) == 0;
  const unsigned count = ports.last - ports.first + 1U;
  unsigned start = 0;  // other processes of this machine search for a port as well
  if (::getrandom(&start, sizeof start, 0) != sizeof start)
    start = static_cast<unsigned>(::getpid());
  for (unsigned i = 0; i < count; ++i) {
    Listener made{.socket = UniqueFd(::socket(both ? AF_INET6 : AF_INET,
                                              SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
    if (!made.socket) return Error::from_errno(errno, "listen for other nodes");
    made.port = static_cast<std::uint16_t>(ports.first + (start % count + i) % count);
    sockaddr_in6 v6{.sin6_family = AF_INET6, .sin6_port = htons(made.port)};
    sockaddr_in v4{.sin_family = AF_INET, .sin_port = htons(made.port)};
    if (at) std::memcpy(&v6.sin6_addr, at->data(), at->size());
    if (at)
      std::memcpy(&v4.sin_addr, at->data() + at->size() - sizeof v4.sin_addr, sizeof v4.sin_addr);
    auto* const address =
        both ? reinterpret_cast<sockaddr*>(&v6) : reinterpret_cast<sockaddr*>(&v4);
    socklen_t size = both ? sizeof v6 : sizeof v4;
    const int off = 0;
    if (both) ::setsockopt(made.socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (::bind(made.socket.get(), address, size) != 0 ||
        ::listen(made.socket.get(), SOMAXCONN) != 0)
      continue;
    if (::getsockname(made.socket.get(), address, &size) != 0)
      return Error::from_errno(errno, "listen for other nodes");
    made.port = ntohs(both ? v6.sin6_port : v4.sin_port);
    return made;
  }
  return Error(ErrorKind::unavailable, ports.first == 0
                                           ? std::string("listen for other nodes: no port is free")
                                           : "listen for other nodes: no port of " +
                                                 std::to_string(ports.first) + "-" +
                                                 std::to_string(ports.last) + " is free");
}

}  // namespace spc
