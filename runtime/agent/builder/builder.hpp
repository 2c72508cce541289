#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "agent/node/image_store.hpp"
#include "protocol/task.hpp"

namespace spc::agent {

/// What the leading task wants to see in the container: a directory or file of the host that it opened (O_PATH), or a tmpfs.
struct MountSource {
  UniqueFd path;
  std::uint32_t flags = 0;  ///< TaskMessage::SourceFlags
  std::uint64_t size = 0;   ///< of a tmpfs, bytes
  ServedLayer served;       ///< of a squashfs
};

/// What must exist before the first task asks; made while Slurm is still busy starting the tasks.
struct AgentTools {
  ImageStore store;
  UniqueFd loop_table;
  UniqueFd id_map;  ///< user namespace to map the layers with; empty for jobs of root: the layers belong to root anyway
  PolicyRecord policy;
  UniqueFd policy_file;  ///< with the texts behind the record: for the user's side
};

/// A task that waits for its container.
struct Task {
  UniqueFd socket;
  UniqueFd mount_namespace;  ///< where it opened the sources
};

/// What the first task asked for; numbers and descriptors only.
struct BuildOrder {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<MountSource> sources;
  dev_t dev = 0;  ///< the file system of /dev
  ImageFiles image;
  bool read_only = false;
  std::uint32_t namespaces = 0;  ///< NamespaceBits
  std::uint64_t upper_size = 0;  ///< bytes; 0: the site's limit
  UniqueFd kept;                 ///< of a container with a name: the directory with its `up` and `work`; else they are in memory
  std::string tmpfs_size;        ///< the same in tmpfs syntax
  int join = -1;                 ///< the mount namespace of a container that runs already: only `sources` are added to it
  bool save = false;
  bool hooks = false;  ///< of enroot's kind: the lead works on the root before the pivot
};

/// Builds the container's root, sets it up together with the leading task, and gives back its mount namespace, the notes
/// that the lead has for the other tasks (if it has), and the namespaces of `order.namespaces` in the order of the enum; `ready`
/// is filled with what the tasks are to know. Changes the mount namespace and root of the calling process, which must do
/// nothing afterwards but hand over the result and exit.
Result<std::vector<UniqueFd>> build_container(BuildOrder& order, const AgentTools& tools, const Task& lead, TaskMessage& ready);

}  // namespace spc::agent
