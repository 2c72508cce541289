#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// One of --container-mounts: a path of the host and where it appears in the container.
struct MountSpec {
  std::string source;       ///< as typed; relative to the job's work directory
  std::string target;       ///< absolute inside the container
  std::uint32_t flags = 0;  ///< TaskMessage::SourceFlags
  std::string shown_as;     ///< what the user typed

  bool operator==(const MountSpec&) const = default;
};

/// The agent takes kMaxSources, with those that every container has.
inline constexpr std::size_t kMaxMounts = 400;
/// The refusal of more mounts than that.
Error too_many_mounts();

/// Parses `SRC[:DST[:FLAGS]][,…]`; FLAGS are joined by `+`. The grammar is that of pyxis 0.24 (args.c).
Result<std::vector<MountSpec>> parse_mounts(std::string_view text);

}  // namespace spc
