#pragma once

#include <cstdint>

namespace spc {

/// What the site decided in config.toml, as numbers: `import policy` parses the file as the service user and writes
/// this; the agent checks and keeps it as /run/spank-container/policy until the file changes.
struct PolicyRecord {
  static constexpr char kMagic[8] = {'S', 'P', 'C', 'P', 'O', 'L', '3', '\0'};

  /// Which state of config.toml this was made from; all zero: there is no such file.
  struct Stamp {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::uint64_t bytes = 0;
    std::int64_t mtime_s = 0;
    std::int64_t mtime_ns = 0;
    bool operator==(const Stamp&) const = default;
  };

  char magic[8] = {};
  Stamp stamp;
  std::uint64_t upper_bytes = 0;  ///< size limit of the writable layer; 0: upper_percent of the memory
  std::uint32_t upper_percent = 50;
  std::uint32_t writable = 1;       ///< default of --container-writable
  std::uint32_t mount_home = 0;     ///< default of --container-mount-home
  std::uint32_t pull = 0;           ///< a Pull
  std::uint32_t squashfs = 0;       ///< a Squashfs
  std::int64_t made_at = 0;         ///< seconds since 1970: what `import` let through before was not measured by this policy
  std::int64_t tag_ttl = 0;         ///< seconds during which a tag is not asked for again
  char default_registry[256] = {};  ///< NUL-terminated

  enum Pull : std::uint32_t { newer = 0, missing = 1, always = 2, never = 3 };
  /// Who reads the layers of the store: by_kernel or, where it cannot map their owners (Linux before 6.2), by_fuse.
  enum Squashfs : std::uint32_t { automatic = 0, by_kernel = 1, by_fuse = 2 };
};

/// What `import policy` writes to descriptor 3: the policy, or why there is none.
struct PolicyAnswer {
  PolicyRecord policy;
  char error[600] = {};  ///< NUL-terminated; empty: the policy counts
};

}  // namespace spc
