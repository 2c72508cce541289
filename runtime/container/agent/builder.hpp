#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "container/agent/image_store.hpp"
#include "container/protocol.hpp"

namespace spc {

/// A directory or file of the host that the leading task opened (O_PATH) to be seen in the container.
struct BindSource {
  UniqueFd path;
  std::uint32_t flags = 0;  ///< TaskMessage::SourceFlags
};

/// All that the builder needs; numbers and descriptors only.
struct BuildOrder {
  uid_t uid = 0;
  gid_t gid = 0;
  int task_mount_namespace = -1;  ///< where the sources were opened
  int id_map = -1;                ///< user namespace to map the layers with; -1: owners stay
  int loop_table = -1;
  int lead = -1;  ///< socket of the furnishing task
  const StoredImage* image = nullptr;
  const std::vector<BindSource>* sources = nullptr;
  std::string upper_size;  ///< of the writable layer and /tmp together, tmpfs syntax
  bool read_only = false;
};

struct BuiltContainer {
  UniqueFd mount_namespace;
  PhaseTimes times{};
  std::uint32_t layers_shared = 0;
  char for_other_tasks[sizeof(TaskMessage::text)] = {};  ///< from the furnishing task, not looked at
};

/// Builds the container's root and furnishes it together with the leading task. Changes the mount namespace and root of
/// the calling process, which must do nothing afterwards but hand over the result and exit.
Result<BuiltContainer> build_container(const BuildOrder& order);

}  // namespace spc
