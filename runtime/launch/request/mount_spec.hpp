#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launch/request/memory_size.hpp"

namespace spc {

/// One entry of --container-mounts: mounts something in the container, or drops a mount.
struct MountSpec {
  enum class Kind {
    bind,      ///< a file or directory of the host
    tmpfs,     ///< an empty tmpfs
    squashfs,  ///< the content of this file
    removal,   ///< drops an earlier mount
  };
  enum class Create { as_source, directory, file };

  Kind kind = Kind::bind;
  std::string source;              ///< bind, squashfs: relative to the job's work directory
  std::string target;              ///< absolute, in the container
  std::uint32_t flags = 0;         ///< TaskMessage::SourceFlags but the kind
  std::optional<MemorySize> size;  ///< tmpfs; empty: as for the other writable parts
  std::optional<unsigned> mode;    ///< tmpfs: of its root directory
  std::uint64_t inodes = 0;        ///< tmpfs: most files; 0: as the kernel does
  Create create = Create::as_source;
  bool optional = false;                      ///< a missing source is no error
  bool silent = false;                        ///< and causes no warning
  bool by_site = false;                       ///< its own rules for mounts do not count
  std::string shown_as;                       ///< as given by the user
  std::string origin = "--container-mounts";  ///< who requested it: an option, a file

  bool operator==(const MountSpec&) const = default;
};

/// The agent accepts kMaxSources, including those of every container.
inline constexpr std::size_t kMaxMounts = 400;
/// The error for more mounts than that.
Error too_many_mounts();

/// What shows the kernel is what programs trust, and what confines them: users cover none of /proc
/// but what lxcfs serves, as with runc, and neither /sys nor /dev as a whole, unless by the host's
/// own.
Result<void> refuse_kernel_views(const MountSpec& mount);

/// Parses `SRC[:DST[:FLAGS]][,…]`; FLAGS are joined by `+`. The grammar is that of pyxis 0.24
/// (args.c) with the flags of enroot's fstab, and more:
///   `/a:ro`, `/a:rw`      as in Apptainer: at the same path
///   `tmpfs:/p:size=1G`    additional flags size=, mode=, uid=, gid=, nr_inodes= and huge=
///   `umount:/p`
///   `f.sqsh:/p:sqsh`      the content of the squashfs file
/// A comma, colon, blank, quote or backslash in a path is escaped with a backslash, or the part is
/// in "quotes".
Result<std::vector<MountSpec>> parse_mounts(std::string_view text);

}  // namespace spc
