#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "reference/location.hpp"

namespace spc {

// --- memory size ---

/// An amount of memory: bytes with suffix K, M, G or T, or N% of the job's memory.
struct MemorySize {
  std::uint64_t bytes = 0;
  std::uint32_t percent = 0;  ///< 1 to 100; 0: see `bytes`

  /// Parses a size. The Error quotes the text and states the reason.
  static Result<MemorySize> parse(std::string_view text);
  bool operator==(const MemorySize&) const = default;
};

/// Returns the bytes of memory available to the calling task: the limit of its cgroups, or the
/// job's request, or all of the node's memory.
std::uint64_t memory_of_job(const std::map<std::string, std::string>& job_environment);

/// Converts `size` to bytes for a job with `memory`, at least one page. Returns an Error if it
/// exceeds `most`, written like a MemorySize; empty: no limit.
Result<std::uint64_t> bytes_of(const MemorySize& size, std::uint64_t memory,
                               const std::string& most);

// --- quoted text ---

/// One item of an option's argument, up to a separator.
struct QuotedPiece {
  std::string text;
  char end = '\0';  ///< the following separator; '\0' after the last item
};

/// Consumes and returns the next piece of `rest`, possibly an empty one. A backslash escapes a
/// following separator, blank, quote or backslash, and is literal elsewhere. A piece that begins
/// with a quote (") ends at the next one, and separators in it are text.
Result<QuotedPiece> next_piece(std::string_view& rest, std::string_view separators);

// --- mount words ---

/// A part of a mount specification, between colons.
struct MountWord {
  std::string text;     ///< without quotes and backslashes
  bool quoted = false;  ///< then it is a path, regardless of its form
};

/// The parts of one mount specification of a list, and its original text.
struct MountWords {
  std::vector<MountWord> parts;  ///< at least one
  std::string_view item;
  bool last = false;
};

/// Consumes the first mount specification of the list and the following comma. Splits at colons;
/// quoting as in next_piece().
Result<MountWords> take_mount(std::string_view& list);

// --- mount spec ---

/// One entry of --container-mounts, which mounts a source in the container or drops a mount.
struct MountSpec {
  enum class Kind {
    bind,      ///< a file or directory of the host
    tmpfs,     ///< an empty tmpfs
    squashfs,  ///< the content of a squashfs file
    removal,   ///< drops an earlier mount
  };
  enum class Create { as_source, directory, file };

  Kind kind = Kind::bind;
  std::string source;              ///< bind, squashfs: relative to the job's work directory
  std::string target;              ///< absolute, in the container
  std::uint32_t flags = 0;         ///< TaskMessage::SourceFlags without the kind
  std::optional<MemorySize> size;  ///< tmpfs; empty: same limit as the other writable parts
  std::optional<unsigned> mode;    ///< tmpfs: mode of its root directory
  std::uint64_t inodes = 0;        ///< tmpfs: limit of files; 0: the kernel's default
  Create create = Create::as_source;
  bool optional = false;  ///< a missing source is no error
  bool silent = false;    ///< and does not cause a warning
  std::string idle_flag;  ///< a flag without effect
  bool by_site = false;   ///< configured by the site, whose rules for mounts do not apply
  std::string shown_as;   ///< as given by the user
  std::string origin = "--container-mounts";  ///< option or file that requested it

  bool operator==(const MountSpec&) const = default;
};

/// Limit of requested mounts: the agent accepts kMaxSources, including those of every container.
inline constexpr std::size_t kMaxMounts = 400;
/// Returns the error for more than kMaxMounts mounts.
Error too_many_mounts();

/// Refuses mounts over the kernel's file systems, which programs trust and which confine them. As
/// with runc, users may cover nothing in /proc except the files that lxcfs serves. They may cover
/// /sys or /dev as a whole only with the host's own.
Result<void> refuse_kernel_views(const MountSpec& mount);

/// Parses `SRC[:DST[:FLAGS]][,…]`; FLAGS are joined by `+`. The grammar is that of pyxis 0.24
/// (args.c) with the flags of enroot's fstab, extended by:
///   `/a:ro`, `/a:rw`      as in Apptainer: at the same path
///   `tmpfs:/p:size=1G`    additional flags size=, mode=, uid=, gid=, nr_inodes= and huge=
///   `umount:/p`
///   `f.sqsh:/p:sqsh`      the content of the squashfs file
/// A comma, colon, blank, quote or backslash in a path is escaped with a backslash, or the part is
/// in "quotes", which also keep a $. Sources and targets are read by `paths`: ~ is the user's home.
/// Errors, here and above, do not name the option.
Result<std::vector<MountSpec>> parse_mounts(std::string_view text, const UserPaths& paths = {});
/// Returns the error of parse_mounts().
Result<void> check_mount_text(const std::string& text);

}  // namespace spc
