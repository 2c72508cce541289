#pragma once

#include <set>
#include <string>

namespace spc {

/// The GPUs' nodes (/dev/nvidia*, /dev/nvidia-caps*/*, /dev/kfd, /dev/dri/*) that the caller's effective user and its device
/// cgroup let open for reading and writing. None is opened: that could wake a GPU. To be asked in slurmstepd, which is in the
/// step's cgroup, and not in a task: with --gpus-per-task or --gpu-bind each task has a narrower one. Of a node without GPUs three
/// system calls are made.
std::set<std::string> granted_gpu_nodes();

}  // namespace spc
