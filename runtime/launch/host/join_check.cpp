#include "launch/host/join_check.hpp"

#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "base/format.hpp"

namespace spc {
namespace {

Error differs(const char* option, const std::string& container, const std::string& how) {
  return Error(ErrorKind::refused,
               formatted("--{}: the container {} {}", option, in_quotes(container), how))
      .hint("it is running already: use the option in the step that starts it");
}

/// The words after "separate" are those of pyxis.
Result<void> check_namespaces(std::uint32_t asked, std::uint32_t has,
                              const std::string& container) {
  constexpr std::array<std::pair<std::uint32_t, const char*>, 5> kNames{{{own_net, "network"},
                                                                         {own_ipc, "IPC"},
                                                                         {own_uts, "UTS"},
                                                                         {own_pid, "PID"},
                                                                         {own_cgroup, "cgroup"}}};
  for (const auto& [bit, name] : kNames) {
    if ((asked & ~has & bit) == 0) continue;
    return differs("container-unshare", container,
                   formatted("is not in a separate {} namespace", name));
  }
  return {};
}

Result<void> check_root(bool asked, bool has, const std::string& container) {
  if (asked == has || ::geteuid() == 0) return {};
  return asked ? differs("container-remap-root", container, "does not have remapped root")
               : differs("no-container-remap-root", container, "has remapped root");
}

Result<void> check_writable(bool asked, bool has, const std::string& container) {
  if (asked == has) return {};
  return asked ? differs("container-writable", container, "is read-only")
               : differs("container-readonly", container, "is writable");
}

}  // namespace

Result<void> check_join(const LaunchRequest& asked, const NamedStart& named,
                        std::uint64_t upper_size, Log& log) {
  const NamedStart::Running& running = named.running();
  const std::string& container = asked.name->text;
  SPC_TRY(check_namespaces(asked.namespaces, running.namespaces, container));
  if (asked.remap_root)
    SPC_TRY(check_root(*asked.remap_root, (running.namespaces & own_user) != 0, container));
  if (asked.writable) SPC_TRY(check_writable(*asked.writable, !running.read_only, container));
  if (asked.tmpfs_size && upper_size != running.upper_size) {
    return differs("container-tmpfs-size", container,
                   formatted("has a limit of {} bytes", running.upper_size));
  }
  const std::array<std::pair<bool, const char*>, 7> unknown{
      {{asked.contain, "container-contain"},
       {asked.mount_home == false, "no-container-mount-home"},
       {!asked.devices.empty(), "container-device"},
       {asked.gpu == true, "container-gpu"},
       {asked.gpu == false, "no-container-gpu"},
       {!asked.mpi.empty(), "container-mpi"},
       {asked.platform.has_value(), "container-platform"}}};
  for (const auto& [is_asked, option] : unknown) {
    if (!is_asked) continue;
    log.write(LogLevel::warning,
              formatted("--{} does not change the container {}, which is running already "
                        "(hint: use the option in the step that starts it)",
                        option, in_quotes(container)));
  }
  return {};
}

}  // namespace spc
