#include "doctor/surroundings.hpp"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/directory.hpp"
#include "base/unique_fd.hpp"
#include "hooks/hook.hpp"

namespace spc {
namespace {

Surroundings::Limit limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return {};
  const auto value = [](rlim_t one) {
    return one == RLIM_INFINITY ? UINT64_MAX : std::uint64_t{one};
  };
  return {value(limit.rlim_cur), value(limit.rlim_max)};
}

std::vector<Surroundings::Interface> interfaces_with_address() {
  std::vector<Surroundings::Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    if (one->ifa_addr->sa_family != AF_INET && one->ifa_addr->sa_family != AF_INET6) continue;
    const std::string name = one->ifa_name;
    const bool known = std::any_of(found.begin(), found.end(),
                                   [&](const auto& other) { return other.name == name; });
    if (!known) found.push_back({name, (one->ifa_flags & IFF_LOOPBACK) != 0});
  }
  ::freeifaddrs(list);
  return found;
}

int listen_for_a_moment(std::uint16_t port) {
  // As PyTorch does: on all addresses, and past a connection that waits for its end.
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0) return errno;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return errno;
  return ::listen(fd.get(), 1) == 0 ? 0 : errno;
}

}  // namespace

const std::string* Surroundings::variable(std::string_view name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

bool Surroundings::exists(const std::string& path) const {
  return ::access((host_root + path).c_str(), F_OK) == 0;
}

std::string Surroundings::text_of(const std::string& path) const {
  const UniqueFd file(::open((host_root + path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text;
  std::array<char, 4096> buffer;
  while (file && text.size() < (64U << 10)) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::vector<std::string> Surroundings::names_in(const std::string& path) const {
  std::vector<std::string> names;
  for (DirectoryReader entries(host_root + path); entries.next();)
    names.emplace_back(entries.name());
  std::sort(names.begin(), names.end());
  return names;
}

Surroundings surroundings_of_this_process(const std::string& driver_root) {
  Surroundings around;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos)
      around.environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  around.driver = discover_nvidia("", driver_root);
  around.locked_memory = limit_of(RLIMIT_MEMLOCK);
  around.open_files = limit_of(RLIMIT_NOFILE);
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) == 0) {
    around.shared_memory = {std::uint64_t{status.f_blocks} * status.f_frsize,
                            std::uint64_t{status.f_bavail} * status.f_frsize};
  }
  around.interfaces = interfaces_with_address();
  around.may_open = [](const std::string& node) {
    const int how = is_mig_capability(node) ? R_OK : R_OK | W_OK;
    if (::faccessat(AT_FDCWD, node.c_str(), how, AT_EACCESS) != 0) return errno;
    struct statvfs mount {};  // a node that is masked in a container
    return ::statvfs(node.c_str(), &mount) == 0 && (mount.f_flag & ST_NODEV) != 0 ? EACCES : 0;
  };
  around.listen_on = listen_for_a_moment;
  return around;
}

}  // namespace spc
