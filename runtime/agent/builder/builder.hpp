#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "agent/builder/loop_device.hpp"
#include "protocol/task.hpp"

namespace spc::agent {

/// A mount source of the leader: a directory or file of the host that it opened (O_PATH), or a tmpfs.
struct MountSource {
  UniqueFd path;
  std::uint32_t flags = 0;  ///< TaskMessage::SourceFlags
  std::uint64_t size = 0, inodes = 0;  ///< of a tmpfs, bytes and files
  ServedLayer served;       ///< of a squashfs
};

/// Prepared before the leader asks, while Slurm is still starting the tasks.
struct AgentTools {
  ImageStore store;
  UniqueFd id_map;  ///< user namespace to map the layers with; empty for jobs of root: the layers are owned by root anyway
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
  std::vector<MountSource> sources;
  dev_t dev = ~dev_t{}, pts = ~dev_t{};  ///< file systems of /dev and /dev/pts
  ImageFiles image;
  bool read_only = false;
  std::uint32_t namespaces = 0;  ///< NamespaceBits
  std::uint64_t upper_size = 0;  ///< bytes; 0: half of the memory
  UniqueFd kept;                 ///< of a named container: the directory with its `up` and `work`; otherwise they are in memory
  std::string tmpfs_size;        ///< the size limit in tmpfs syntax
  int join = -1;                 ///< the mount namespace of a running container, to which only `sources` are added
  bool save = false;
  bool hooks = false;  ///< enroot's: the leader works on the root before the pivot
};

/// Builds the container's root, sets it up together with the leader, and returns its mount namespace, the leader's notes
/// for the tasks, and the namespaces of `order.namespaces` in the order of the enum; fills `ready`
/// for the tasks. Changes the mount namespace and root of the calling process, which must do
/// nothing afterwards but pass on the result and exit.
Result<std::vector<UniqueFd>> build_container(BuildOrder& order, const AgentTools& tools, const Task& lead, TaskMessage& ready);

/// When slurmd starts, as root: makes the mount namespace, without processes, in which jobs hold layers.
Result<void> set_up_held_layers();

/// Keeps these layers mounted, for later steps to share, until the directory is removed that this makes for them, with this name,
/// among the steps. If there is one already, it does nothing.
Result<void> hold_layers(const std::vector<LayerFile>& layers, LayerOwner owner, const std::string& name);

}  // namespace spc::agent
