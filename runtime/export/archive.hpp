#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- tar member ---

// Parts of a tar archive, for one whose first member is written before its name is known.

inline constexpr std::uint64_t kTarHeaderBytes = 512;

/// Returns the header of a world-readable regular file of `size` bytes. `path` has at most 99
/// characters. Sizes of 8 GiB and more are written in binary, as by GNU tar.
std::string tar_header(const std::string& path, std::uint64_t size);

/// Returns the padding after `size` bytes of content.
std::string tar_padding(std::uint64_t size);

// --- image tree ---

// Access to the files of a mounted image from outside. Links in the image never lead out of it.

/// Opens `path`, resolved inside the image.
Result<UniqueFd> open_in_image(int root, const std::string& path);
/// Returns the text of a file, at most `limit` bytes; empty if there is none.
std::string text_in_image(int root, const std::string& path, std::size_t limit);

/// A visited entry of a tree.
struct TreeEntry {
  std::string path;  ///< without leading '/'
  int directory;     ///< descriptor of its directory; valid during the visit
  const char* name;  ///< its name in that directory
  struct stat status;
};
/// Calls `visit` for every entry below `root`, a directory before its content, in the order of
/// names. Links are not followed.
Result<void> walk_image(int root, const std::function<Result<void>(const TreeEntry&)>& visit);

// --- tree snapshot ---

/// Snapshot of a tree's metadata, to find later changes. Metadata is enough: a change of content
/// gives a file a new ctime, which no user can set back, and overlayfs shows the image's files with
/// the inode numbers that they have there.
class KnownTree {
 public:
  static Result<KnownTree> read(int root);

  /// Entries of the snapshot found by a later scan, for gone().
  struct Met {
    std::set<std::string> paths, directories;
  };
  /// Returns whether the entry is unchanged. Of a directory only its mode matters. Records the
  /// entry in `met`.
  bool is_unchanged(const TreeEntry& entry, Met& met) const;
  /// Returns the removed entries in order, without those below a removed directory.
  [[nodiscard]] std::vector<std::string> gone(const Met& met) const;

 private:
  std::map<std::string, std::uint64_t> marks_;
};

// --- archive ---

/// A file added to the archive, which replaces the image's own.
struct AddedFile {
  std::string path;  ///< without leading '/'
  std::string text;
  std::uint32_t mode = 0644;
};

/// Returns $SOURCE_DATE_EPOCH in seconds since 1970, if it is set (see reproducible-builds.org).
std::optional<std::int64_t> latest_time();

/// Receiver of an archive's bytes in order.
using ByteSink = std::function<Result<void>(const void* bytes, std::size_t size)>;

/// Writes the mounted image below `root` as one tar archive (PAX): directories, files, links, hard
/// links. Every entry is owned by root; sockets and devices are skipped. The same tree gives the
/// same bytes: entries are in order, and added files have the latest time in the tree. No entry is
/// newer than $SOURCE_DATE_EPOCH, if that is set.
Result<void> write_tree(int root, const std::vector<AddedFile>& added, const ByteSink& sink);

/// Writes the differences from `known` in the same way, as a layer on the OCI image that `known`
/// was read from. Removed entries become whiteouts.
Result<void> write_changes(int root, const KnownTree& known, const ByteSink& sink);

/// Returns whether the file begins as a tar archive does, plain or compressed.
bool is_archive(int file);
/// Unpacks a tar archive, plain or compressed, into the work directory. Its files belong to the
/// caller. The caller has entered a root that no link may leave.
Result<void> unpack_archive(int file);

/// Writes the upper directory of an overlay with `userxattr` as such a layer: its whiteouts
/// (devices 0:0) and opaque directories become those of OCI.
Result<void> write_upper(int upper, const ByteSink& sink);

}  // namespace spc

// --- zstd sink ---

struct ZSTD_CCtx_s;

namespace spc {

/// zstd compressor of a byte stream. The same bytes give the same output on any number of
/// processors.
class ZstdSink {
 public:
  /// `to` is borrowed.
  explicit ZstdSink(const ByteSink& to);
  Result<void> write(const void* bytes, std::size_t size) { return compress(bytes, size, false); }
  Result<void> finish() { return compress(nullptr, 0, true); }

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  Result<void> compress(const void* bytes, std::size_t size, bool is_end);

  const ByteSink& to_;
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  std::vector<std::byte> out_;
};

}  // namespace spc
