#pragma once

#include <cstdint>

#include "protocol/wire_error.hpp"

namespace spc {

/// The numbers of config.toml and config.d: `import policy` parses the files as the service user
/// and writes this. The agent checks it and keeps it as /run/spank-container/policy until one of
/// the files changes. In that file texts follow, which root does not read (config/config.hpp): the
/// settings of the user's side of a start, and the files, for use if the next ones have an error.
struct PolicyRecord {
  static constexpr char kMagic[8] = {'S', 'P', 'C', 'P', 'O', 'L', '9', '\0'};
  static constexpr std::uint32_t kMostText = 256 << 10;

  char magic[8] = {};
  std::uint64_t stamp = 0;  ///< identifies the state of the source files
  /// size limit of the writable layer; 0: upper_percent of the memory
  std::uint64_t upper_bytes = 0;
  std::uint32_t upper_percent = 50;
  std::uint32_t writable = 1;         ///< default of --container-writable
  std::uint32_t mount_home = 0;       ///< default of --container-mount-home
  std::uint32_t pull = 0;             ///< a Pull
  std::uint32_t squashfs = 0;         ///< a Squashfs
  std::uint32_t most_containers = 0;  ///< named containers of a user on a node; 0: no limit
  /// layers that the kernel mounts for a start; FUSE serves an image with more; 0: FUSE serves all
  std::uint32_t most_layers = 500;
  std::uint32_t task_flags = error_report;  ///< TaskFlags
  std::uint32_t text_bytes = 0;             ///< length of the following texts, at most kMostText
  /// seconds since 1970: images admitted earlier were not checked against this policy
  std::int64_t made_at = 0;
  std::int64_t tag_ttl = 0;         ///< seconds for which a tag is not resolved again
  std::int64_t job_tag_ttl = 0;     ///< the same for a tag resolved since the job was submitted
  char default_registry[256] = {};  ///< NUL-terminated

  /// Settings of the site for tasks that have not read any text yet.
  enum TaskFlags : std::uint32_t { error_report = 1, task_prolog_on_host = 2 };
  enum Pull : std::uint32_t { newer = 0, missing = 1, always = 2, never = 3 };
  /// How the store's layers are read, for images of up to most_layers: by_kernel or, if it cannot
  /// map their owners (Linux before 6.2), by FUSE. Jobs of root need no map. `automatic`:
  /// by_kernel, and by FUSE if that fails. `by_copies`: by the kernel, a squashfs from a copy that
  /// shares its blocks and names the user as the owner; by FUSE if that fails.
  enum Squashfs : std::uint32_t {
    automatic = 0,
    by_kernel = 1,
    by_fuse_for_users = 2,
    by_copies = 3
  };
};

/// Sent by `import policy` to descriptor 3, with the texts as a memory file, or with the reason of
/// the failure.
struct PolicyAnswer {
  PolicyRecord policy;
  WireError error;  ///< not set: the policy is valid
};

/// Sent by `import trust`, a process of the leader: whether the site's policy.json admits a local
/// image.
struct TrustAnswer {
  WireError error;  ///< not set: the image is admitted
};

}  // namespace spc
