#pragma once

#include <set>
#include <string>

namespace spc {

/// Returns the GPU device nodes (/dev/nvidia*, /dev/nvidia-caps*/*, /dev/kfd, /dev/dri/*) that the
/// caller's effective user and device cgroup may open for reading and writing. The capability nodes
/// of MIG, which the driver makes read-only, count if they can be read. Opens none of them: that
/// could wake up a GPU. Call it in slurmstepd, which is in the step's cgroup, not in a task: with
/// --gpus-per-task or --gpu-bind each task has a narrower one. Makes three system calls on a node
/// without GPUs.
std::set<std::string> granted_gpu_nodes();

}  // namespace spc
