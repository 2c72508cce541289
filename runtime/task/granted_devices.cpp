#include "task/granted_devices.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string_view>

#include "base/unique_fd.hpp"

namespace spc {
namespace {

constexpr long kFaccessat2 = 439;  // the same on every architecture; not every libc defines it

/// Returns whether the effective IDs can open the node. glibc before 2.33 derives the answer for
/// other effective IDs from the file's mode, without asking the kernel.
bool can_open(const std::string& node, int how) {
  return ::syscall(kFaccessat2, AT_FDCWD, node.c_str(), how, AT_EACCESS) == 0;
}

void add_from(const std::string& directory, std::string_view prefix, std::set<std::string>& nodes,
              int how = R_OK | W_OK) {
  for (DirectoryReader entries(directory); entries.next();) {
    const std::string node = directory + "/" + entries.c_name();
    if (entries.type() == DT_CHR && entries.name().starts_with(prefix) && can_open(node, how))
      nodes.insert(node);
  }
}

}  // namespace

std::set<std::string> granted_gpu_nodes() {
  std::set<std::string> nodes;
  if (::access("/dev/nvidiactl", F_OK) == 0) {
    add_from("/dev", "nvidia", nodes);
    add_from("/dev/nvidia-caps", "nvidia-cap", nodes, R_OK);  // their mode is 0444
    add_from("/dev/nvidia-caps-imex-channels", "channel", nodes);
  }
  if (::access("/dev/kfd", F_OK) == 0 && can_open("/dev/kfd", R_OK | W_OK))
    nodes.insert("/dev/kfd");
  if (::access("/dev/dri", F_OK) == 0) add_from("/dev/dri", "", nodes);
  return nodes;
}

}  // namespace spc
