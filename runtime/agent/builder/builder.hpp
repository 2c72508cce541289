#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "agent/builder/loop_device.hpp"
#include "protocol/task.hpp"

namespace spc::agent {

/// Prepared before the leader asks, while Slurm is still starting the tasks.
struct AgentTools {
  ImageStore store;
  UniqueFd id_map;  ///< user namespace to map the layers with; empty for jobs of root: the layers
                    ///< are owned by root anyway
  PolicyRecord policy;
  UniqueFd policy_file;  ///< with the texts after the record: for the user's side

  [[nodiscard]] LayerOwner layer_owner(uid_t uid, gid_t gid) const {
    const bool by_copies = policy.squashfs == PolicyRecord::by_copies && uid != 0;
    return {id_map.get(), by_copies ? &store : nullptr, uid, gid};
  }
};

/// A task waiting for its container.
struct Task {
  UniqueFd socket;
  UniqueFd mount_namespace;  ///< in which it opened the sources
};

/// The leader's request; numbers and descriptors only.
struct BuildOrder {
  uid_t uid = 0;
  gid_t gid = 0;
  std::uint32_t flags =
      0;  ///< TaskMessage::StartFlags. start_private: one container after the other
  std::uint32_t sources_due = 0, files_due = 0,
                files_mounted = 0;       ///< from the leader: sources, and files that are served
  std::vector<ServedLayer> served;       ///< the files, without the image
  dev_t dev = ~dev_t{}, pts = ~dev_t{};  ///< file systems of /dev and /dev/pts
  ImageFiles image;
  std::uint32_t namespaces = 0;  ///< NamespaceBits
  std::uint64_t upper_size = 0;  ///< bytes; 0: half of the memory
  UniqueFd kept;  ///< of a named container: the directory with its `up` and `work`; otherwise they
                  ///< are in memory
  std::string tmpfs_size;  ///< the size limit in tmpfs syntax
  int join = -1;  ///< the mount namespace of a running container, to which only `sources` are added

  [[nodiscard]] bool is(std::uint32_t one_of) const { return (flags & one_of) != 0; }
};

/// Builds the container's root, sets it up together with the leader, and returns its mount
/// namespace, the leader's notes for the tasks, and the namespaces of `order.namespaces` in the
/// order of the enum; fills `ready` for the tasks. Changes the mount namespace and root of the
/// calling process, which must do nothing afterwards but pass on the result and exit.
Result<std::vector<UniqueFd>> build_container(BuildOrder& order, const AgentTools& tools,
                                              const Task& lead, TaskMessage& ready);

/// When slurmd starts, as root: makes the mount namespace, without processes, in which jobs hold
/// layers.
Result<void> set_up_held_layers();

/// Keeps these layers mounted, for later steps to share, until the directory is removed that this
/// makes for them, with this name, among the steps. If there is one already, it does nothing.
Result<void> hold_layers(const std::vector<LayerFile>& layers, LayerOwner owner,
                         const std::string& name);

}  // namespace spc::agent
