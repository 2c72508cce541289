#pragma once

#include <cstdint>

#include "protocol/wire_error.hpp"

namespace spc {

/// The numbers of config.toml and config.d: `import policy` parses the files as the service user
/// and writes this; the agent checks and keeps it as /run/spank-container/policy until one of the
/// files changes. In that file, texts follow that only the user's side of a start reads:
/// launch/policy/site_policy.hpp.
struct PolicyRecord {
  static constexpr char kMagic[8] = {'S', 'P', 'C', 'P', 'O', 'L', '8', '\0'};
  static constexpr std::uint32_t kMostText = 256 << 10;

  char magic[8] = {};
  std::uint64_t stamp = 0;  ///< of the state of the source files
  std::uint64_t upper_bytes =
      0;  ///< size limit of the writable layer; 0: upper_percent of the memory
  std::uint32_t upper_percent = 50;
  std::uint32_t writable = 1;         ///< default of --container-writable
  std::uint32_t mount_home = 0;       ///< default of --container-mount-home
  std::uint32_t pull = 0;             ///< a Pull
  std::uint32_t squashfs = 0;         ///< a Squashfs
  std::uint32_t most_containers = 0;  ///< with a name, of a user on a node; 0: no limit
  std::uint32_t most_layers = 500;    ///< that the kernel mounts for a start, an image with more is
                                      ///< served by FUSE; 0: all are
  std::uint32_t task_flags = error_report;  ///< TaskFlags
  std::uint32_t text_bytes = 0;             ///< length of the following texts, at most kMostText
  std::int64_t made_at =
      0;  ///< seconds since 1970: images admitted earlier were not checked against this policy
  std::int64_t tag_ttl = 0;      ///< seconds for which a tag is not resolved again
  std::int64_t job_tag_ttl = 0;  ///< the same for one that was resolved since the job was submitted
  char default_registry[256] = {};  ///< NUL-terminated

  /// Settings of the site for tasks that have read no text yet.
  enum TaskFlags : std::uint32_t { error_report = 1, task_prolog_on_host = 2 };
  enum Pull : std::uint32_t { newer = 0, missing = 1, always = 2, never = 3 };
  /// How the store's layers are read, up to most_layers of an image: by_kernel or, if it cannot map
  /// their owners (Linux before 6.2), by FUSE. Jobs of root need no map. `automatic`: by_kernel,
  /// and where that fails by FUSE. `by_copies`: by the kernel, a squashfs from a copy that shares
  /// its blocks and says that the user owns it; where that fails by FUSE.
  enum Squashfs : std::uint32_t {
    automatic = 0,
    by_kernel = 1,
    by_fuse_for_users = 2,
    by_copies = 3
  };
};

/// Sent by `import policy` to descriptor 3, with the texts as a memory file, or the reason why
/// there is none.
struct PolicyAnswer {
  PolicyRecord policy;
  WireError error;  ///< not set: the policy is valid
};

/// Sent by `import trust`, a process of the leader: whether the site's policy.json admits a local
/// image.
struct TrustAnswer {
  WireError error;  ///< not set: it does
};

}  // namespace spc
