#include "launch/host/own_cgroup.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "base/file.hpp"
#include "base/text.hpp"

namespace spc {
namespace {

constexpr char kCgroups[] = "/sys/fs/cgroup";
constexpr std::uint32_t kAsShown = TaskMessage::source_read_only | TaskMessage::source_no_exec;
constexpr std::uint64_t kCgroupRoom = 64 << 10;  // bytes: nothing but mount targets

/// Where systemd, and so everybody, mounts this hierarchy where the version 1 is in use.
std::string place_of(std::string_view controllers) {
  if (controllers.empty()) return "/unified";
  constexpr std::string_view kNamed = "name=";
  if (controllers.starts_with(kNamed)) controllers.remove_prefix(kNamed.size());
  return "/" + std::string(controllers);
}

/// Slurm limits the step; of its tasks, each in a cgroup below, a container may have several.
std::string without_task(std::string_view path) {
  const auto last = path.rfind('/');
  return std::string(path.substr(last + 1).starts_with("task_") ? path.substr(0, last) : path);
}

/// HIERARCHY:CONTROLLERS:PATH, cgroups(7). Where a hierarchy is not mounted there is nothing to
/// hide either.
void add_hierarchy(HostSide& side, std::string_view line) {
  const auto first = line.find(':');
  const auto second = line.find(':', first + 1);
  if (second == std::string_view::npos) return;
  const std::string_view controllers = line.substr(first + 1, second - first - 1);
  const std::string source =
      kCgroups + place_of(controllers) + without_task(line.substr(second + 1));
  const auto add_at = [&](const std::string& place) {
    [[maybe_unused]] const auto added = add_source(side, source, place, kAsShown, place);
  };
  add_at(kCgroups + place_of(controllers));
  if (controllers.find(',') == std::string_view::npos) return;
  for (const std::string_view one : split(controllers, ',')) add_at(kCgroups + place_of(one));
}

/// Version 2 alone: one hierarchy, in which paths are those of its only mount.
bool add_unified(HostSide& side, std::string_view line) {
  constexpr std::string_view kUnified = "0::";
  if (!line.starts_with(kUnified) ||
      ::access((std::string(kCgroups) + "/cgroup.controllers").c_str(), F_OK) != 0)
    return false;
  return add_source(side, kCgroups + without_task(line.substr(kUnified.size())), kCgroups, kAsShown,
                    kCgroups)
      .has_value();
}

}  // namespace

void add_own_cgroup(HostSide& side) {
  if (::access(kCgroups, F_OK) != 0) return;
  const UniqueFd file(::open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC));
  const auto text = read_file(file.get(), 1 << 16);
  const auto lines = split(text ? *text : std::string_view(), '\n');
  const auto is_all = [&](std::string_view line) { return add_unified(side, line); };
  if (std::ranges::none_of(lines, is_all)) {
    add_tmpfs(side, kCgroups, TaskMessage::source_no_exec, kCgroupRoom, {}, kCgroups);
    for (const std::string_view line : lines) add_hierarchy(side, line);
  }
  side.added_for("--container-unshare=cgroup");
}

}  // namespace spc
