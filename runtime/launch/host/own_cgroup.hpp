#pragma once

#include "launch/host/host_side.hpp"

namespace spc {

/// --container-unshare=cgroup: at /sys/fs/cgroup nothing is seen of the node's cgroups but that of
/// the step, read-only; outside Slurm, but the caller's own. What each task's /proc/self/cgroup
/// shows is the namespace's doing. Where the cgroup is not in sight, nothing is shown.
void add_own_cgroup(HostSide& side);

}  // namespace spc
