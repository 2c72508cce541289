#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/image_store.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "mount/mount.hpp"
#include "protocol/task.hpp"

namespace spc::agent {

// --- layer ---

/// A loop device over a layer file. The kernel frees it (autoclear) with its last user: this
/// descriptor or a mount.
struct LoopDevice {
  UniqueFd device;
  int number = -1;
  bool shared = false;  ///< set up by another step on this node
};

/// How the files of a layer, all owned by ID 0, become the user's.
struct LayerOwner {
  int id_map = -1;                    ///< user namespace that maps the mount; -1: none
  const ImageStore* store = nullptr;  ///< a squashfs copy there carries these IDs
                                      ///< (LayerFormat::owned_squashfs); nullptr: no copies
  uid_t uid = 0;
  gid_t gid = 0;
};

/// Returns the loop device of this layer, or of the owner's copy of it: the one that a running step
/// uses, or a new one. Steps that use the same device share the layer's super block and page cache.
/// An attribute of the layer's file has the number of its last device (31 attributes for owners of
/// copies). It is only a hint, checked against the kernel's state of the device.
Result<LoopDevice> loop_device_of(const LayerFile& layer, const LayerOwner& owner);

/// Mounts the squashfs or erofs in a layer's file through a loop device, read-only, nosuid, nodev.
/// Counts a reused device in `shared`. EOPNOTSUPP if the kernel cannot make the user its owner like
/// this, ENODEV if it does not have the file system.
Result<DetachedMount> new_layer(const LayerFile& layer, const LayerOwner& owner,
                                std::uint32_t& shared);

// --- builder ---

/// Resources prepared before the leader asks, while Slurm is still starting the tasks.
struct AgentTools {
  ImageStore store;
  UniqueFd id_map;  ///< user namespace to map the layers with; empty for jobs of root, whose layers
                    ///< are owned by root anyway
  PolicyRecord policy;
  UniqueFd policy_file;  ///< the record, followed by texts for the user's side

  [[nodiscard]] LayerOwner layer_owner(uid_t uid, gid_t gid) const {
    const bool by_copies = policy.squashfs == PolicyRecord::by_copies && uid != 0;
    return {id_map.get(), by_copies ? &store : nullptr, uid, gid};
  }
};

/// A task waiting for its container.
struct Task {
  UniqueFd socket;
  UniqueFd mounts;  ///< from the leader: a socket with its mount namespace, which a builder
                    ///< receives
};

/// The leader's request: numbers and descriptors only.
struct BuildOrder : MountDefaults {
  /// TaskMessage::StartFlags. start_private: the containers are built one after the other.
  std::uint32_t flags = 0;
  /// From the leader: sources, and files to serve.
  std::uint32_t sources_due = 0, files_due = 0;
  std::vector<ServedLayer> served;  ///< the layers of the image that are served, then other files
  std::size_t files_mounted = 0;    ///< at first the number of the layers in `served`
  ImageFiles image;
  std::uint32_t namespaces = 0;  ///< NamespaceBits
  std::uint64_t upper_size = 0;  ///< bytes; 0: half of the memory
  UniqueFd kept;  ///< of a named container: the directory with its `up` and `work`; empty: they are
                  ///< in memory
  int join = -1;  ///< the mount namespace of a running container, to which only `sources` are
                  ///< added; -1: none

  [[nodiscard]] bool is(std::uint32_t one_of) const { return (flags & one_of) != 0; }
};

/// Builds the container's root, sets it up together with the leader, and fills `ready` for the
/// tasks. Returns its mount namespace, the leader's notes for the tasks, and the namespaces of
/// `order.namespaces` in the order of the enum. Changes the mount namespace and root of the calling
/// process, which afterwards may only pass on the result and exit.
Result<std::vector<UniqueFd>> build_container(BuildOrder& order, const AgentTools& tools,
                                              const Task& lead, TaskMessage& ready);

/// Makes the mount namespace, without processes, in which jobs hold layers. Called as root when
/// slurmd starts.
Result<void> set_up_held_layers();

/// Keeps these layers mounted, for later steps to share. They stay until the directory that this
/// creates among the steps, with this name, is removed. Has no effect if that directory exists.
Result<void> hold_layers(const std::vector<LayerFile>& layers, LayerOwner owner,
                         const std::string& name);

}  // namespace spc::agent
