#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launch/request/memory_size.hpp"

namespace spc {

/// One of --container-mounts: what appears at a place in the container, or is taken away from it.
struct MountSpec {
  enum class Kind {
    bind,      ///< a file or directory of the host
    tmpfs,     ///< an empty directory in memory
    squashfs,  ///< what is in this file
    removal,   ///< nothing: what would be mounted there by now is not
  };
  enum class Create { as_source, directory, file };

  Kind kind = Kind::bind;
  std::string source;              ///< bind, squashfs: relative to the job's work directory
  std::string target;              ///< absolute inside the container
  std::uint32_t flags = 0;         ///< TaskMessage::SourceFlags but the kind
  std::optional<MemorySize> size;  ///< tmpfs; empty: as the container's other writable parts
  std::optional<unsigned> mode;    ///< tmpfs: of its root directory
  Create create = Create::as_source;
  bool optional = false;                      ///< what is not there is no error
  bool silent = false;                        ///< and is not worth a warning
  std::string shown_as;                       ///< what the user typed
  std::string origin = "--container-mounts";  ///< who wants it: an option, a file

  bool operator==(const MountSpec&) const = default;
};

/// The agent takes kMaxSources, with those that every container has.
inline constexpr std::size_t kMaxMounts = 400;
/// The refusal of more mounts than that.
Error too_many_mounts();

/// Parses `SRC[:DST[:FLAGS]][,…]`; FLAGS are joined by `+`. The grammar is that of pyxis 0.24 (args.c) with the flags of
/// enroot's fstab, and more:
///   `/a:ro`, `/a:rw`      as Apptainer takes it: at the same place
///   `tmpfs:/p:size=1G`    flags size= and mode= besides
///   `umount:/p`
///   `f.sqsh:/p:sqsh`      the squashfs in that file
/// A comma, colon, blank, quote or backslash that belongs to a path has a backslash before it, or the part is in "quotes".
Result<std::vector<MountSpec>> parse_mounts(std::string_view text);

}  // namespace spc
