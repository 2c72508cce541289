#pragma once

#include <cstdint>

#include "protocol/wire_error.hpp"

namespace spc {

/// What the site decided in config.toml and config.d, as numbers: `import policy` parses the files as the service user and
/// writes this; the agent checks and keeps it as /run/spank-container/policy until one of the files changes. Behind it, in
/// that file, are the texts that only the user's side of a start reads: launch/site.hpp.
struct PolicyRecord {
  static constexpr char kMagic[8] = {'S', 'P', 'C', 'P', 'O', 'L', '4', '\0'};
  static constexpr std::uint32_t kMostText = 256 << 10;

  char magic[8] = {};
  std::uint64_t stamp = 0;        ///< of the state of the files that this was made from
  std::uint64_t upper_bytes = 0;  ///< size limit of the writable layer; 0: upper_percent of the memory
  std::uint32_t upper_percent = 50;
  std::uint32_t writable = 1;       ///< default of --container-writable
  std::uint32_t mount_home = 0;     ///< default of --container-mount-home
  std::uint32_t pull = 0;           ///< a Pull
  std::uint32_t squashfs = 0;       ///< a Squashfs
  std::uint32_t text_bytes = 0;     ///< length of the texts behind it, at most kMostText
  std::int64_t made_at = 0;         ///< seconds since 1970: what `import` let through before was not measured by this policy
  std::int64_t tag_ttl = 0;         ///< seconds during which a tag is not asked for again
  char default_registry[256] = {};  ///< NUL-terminated

  enum Pull : std::uint32_t { newer = 0, missing = 1, always = 2, never = 3 };
  /// Who reads the layers of the store: by_kernel or, where it cannot map their owners (Linux before 6.2), by_fuse.
  enum Squashfs : std::uint32_t { automatic = 0, by_kernel = 1, by_fuse = 2 };
};

/// What `import policy` writes to descriptor 3, with the texts as a memory file, or why there is none.
struct PolicyAnswer {
  PolicyRecord policy;
  WireError error;  ///< not set: the policy counts
};

}  // namespace spc
