#pragma once

#include <set>
#include <string>

namespace spc {

/// The GPU device nodes (/dev/nvidia*, /dev/nvidia-caps*/*, /dev/kfd, /dev/dri/*) that the caller's
/// effective user and device cgroup may open for reading and writing; the capability nodes of MIG,
/// which the driver makes read-only, for reading. None is opened: that could wake up a GPU. Call it
/// in slurmstepd, which is in the step's cgroup, not in a task: with --gpus-per-task or --gpu-bind
/// each task has a narrower one. On a node without GPUs it makes three system calls.
std::set<std::string> granted_gpu_nodes();

}  // namespace spc
