#include "share/node_networks.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/format.hpp"

namespace spc {

namespace {

using Ip = std::array<std::uint8_t, 16>;
constexpr unsigned kMapped = 96;  // bits before an IPv4 address

Ip mapped(const in_addr& v4) {
  Ip ip{};
  ip[10] = ip[11] = 0xff;
  std::memcpy(ip.data() + 12, &v4, sizeof v4);
  return ip;
}

Ip ip_of(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof v4);
    return mapped(v4.sin_addr);
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof v6);
  Ip ip{};
  std::memcpy(ip.data(), &v6.sin6_addr, ip.size());
  return ip;
}

bool is_v4(const Ip& ip) { return Network{mapped({}), kMapped}.has(ip); }
bool is_loopback(const Ip& ip) {
  return is_v4(ip) ? ip[12] == 127 : ip == Ip{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
}
bool is_link_local(const Ip& ip) {
  return is_v4(ip) ? ip[12] == 169 && ip[13] == 254 : ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80;
}

/// Returns megabits per second. Bridges and other interfaces without a device have none.
long speed_of(const std::string& interface) {
  const std::string directory = "/sys/class/net/" + interface + "/";
  if (::access((directory + "device").c_str(), F_OK) != 0) return -1;
  long speed = 0;
  std::ifstream(directory + "speed") >> speed;
  return std::max(speed, 0L);
}

}  // namespace

Network Network::parse(const std::string& text) {
  const std::size_t slash = text.find('/');
  const std::string address = text.substr(0, slash);
  Network network;
  std::from_chars(text.data() + slash + 1, text.data() + text.size(), network.bits);
  in_addr v4{};
  if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) {
    network.address = mapped(v4);
    network.bits += kMapped;
  } else {
    ::inet_pton(AF_INET6, address.c_str(), network.address.data());
  }
  return network;
}

bool Network::has(const Ip& other) const {
  for (unsigned bit = 0; bit < bits; ++bit) {
    const auto mask = static_cast<std::uint8_t>(0x80U >> (bit % 8));
    if (((address[bit / 8] ^ other[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

NodeNetworks NodeNetworks::find() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, &::freeifaddrs);
  std::vector<std::pair<long, Network>> found;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    const bool is_ip = one->ifa_addr != nullptr && (one->ifa_addr->sa_family == AF_INET ||
                                                    one->ifa_addr->sa_family == AF_INET6);
    if (!is_ip || one->ifa_netmask == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const Ip ip = ip_of(*one->ifa_addr);
    if (is_link_local(ip)) continue;
    const Ip mask = ip_of(*one->ifa_netmask);
    unsigned bits = is_v4(ip) ? kMapped : 0;
    while (bits < 128 && (mask[bits / 8] & (0x80U >> (bits % 8))) != 0) ++bits;
    found.emplace_back(is_loopback(ip) ? -2 : speed_of(one->ifa_name), Network{ip, bits});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const bool only_loopback = !found.empty() && found.front().first == -2;
  NodeNetworks networks;
  for (const auto& [speed, network] : found) {
    if (speed > -2 || only_loopback) networks.own.push_back(network);
  }
  return networks;
}

std::vector<Network> NodeNetworks::in(const std::vector<Network>& wanted) const {
  if (wanted.empty()) return own;
  std::vector<Network> some;
  for (const Network& network : own) {
    if (std::any_of(wanted.begin(), wanted.end(),
                    [&](const Network& one) { return one.has(network.address); }))
      some.push_back(network);
  }
  return some;
}

bool NodeNetworks::may_ask(const PeerAddress& at, const std::vector<Network>& wanted) const {
  if (at.port < 1024 || is_link_local(at.ip)) return false;
  const bool here = !own.empty() && is_loopback(own.front().address);
  if (is_loopback(at.ip) && !here) return false;
  const auto& among = wanted.empty() ? own : wanted;
  return std::any_of(among.begin(), among.end(),
                     [&](const Network& one) { return one.has(at.ip); });
}

std::string url_of(const PeerAddress& at) {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_v4(at.ip)) {
    ::inet_ntop(AF_INET, at.ip.data() + 12, text, sizeof text);
    return formatted("http://{}:{}", text, at.port);
  }
  ::inet_ntop(AF_INET6, at.ip.data(), text, sizeof text);
  return formatted("http://[{}]:{}", text, at.port);
}

}  // namespace spc
