#include "launch/host/own_dev.hpp"

#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "base/directory.hpp"
#include "task/granted_devices.hpp"

namespace spc {
namespace {

constexpr std::uint64_t kDevRoom = 1 << 20;  // bytes: nothing but mount targets and links

/// Those that the node does not have are left out.
void add_node(HostSide& side, const std::string& path) {
  [[maybe_unused]] const auto added = add_source(side, path, path, 0, path);
}

/// What MPI and NCCL open: adapters, and what copies memory between processes or from GPUs.
bool is_of_fabric(std::string_view name) {
  constexpr std::string_view kKinds[] = {"cxi", "hfi1", "xpmem", "knem", "gdrdrv"};
  return std::ranges::any_of(kKinds, [&](std::string_view kind) { return name.starts_with(kind); });
}

void add_fabric(HostSide& side) {
  for (DirectoryReader entries("/dev"); entries.next();) {
    if (entries.type() == DT_CHR && is_of_fabric(entries.name()))
      add_node(side, std::string("/dev/") + entries.c_name());
  }
  for (DirectoryReader entries("/dev/infiniband"); entries.next();) {
    if (entries.type() == DT_CHR)
      add_node(side, std::string("/dev/infiniband/") + entries.c_name());
  }
}

/// As docker has it: the terminal of `srun --pty`.
void add_console(HostSide& side) {
  char terminal[64];
  if (::ttyname_r(STDIN_FILENO, terminal, sizeof terminal) != 0) return;
  [[maybe_unused]] const auto added = add_source(side, terminal, "/dev/console", 0, "/dev/console");
}

}  // namespace

void add_own_dev(HostSide& side, const LaunchRequest& request) {
  add_tmpfs(side, "/dev", TaskMessage::source_no_exec, kDevRoom, {}, "/dev");
  for (const char* node :
       {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}) {
    add_node(side, node);
  }
  add_tmpfs(side, "/dev/pts", TaskMessage::source_terminals, 0, {},
            "/dev/pts");  // that of the node may have no ptmx to open
  add_console(side);
  // Private containers of a step are to share memory, as MPI does.
  if (request.private_layer) {
    add_node(side, "/dev/shm");
  } else {
    add_tmpfs(side, "/dev/shm", 0, 0, 01777, "/dev/shm");
  }
  if (request.gpu.value_or(true)) {
    for (const std::string& node : request.granted_devices.value_or(granted_gpu_nodes()))
      add_node(side, node);
  }
  add_fabric(side);
  side.root.dev_targets = side.root.targets.size();
  side.added_for("--container-contain");
}

bool has_target(const HostSide& side, const std::string& path) {
  return std::ranges::any_of(side.root.targets,
                             [&](const MountTarget& other) { return other.target == path; });
}

}  // namespace spc
