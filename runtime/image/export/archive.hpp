#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/export/known_tree.hpp"

namespace spc {

/// A file that is added to the archive, replacing the image's own.
struct AddedFile {
  std::string path;  ///< without leading '/'
  std::string text;
  std::uint32_t mode = 0644;
};

/// $SOURCE_DATE_EPOCH in seconds since 1970, if it is set: reproducible-builds.org has what it
/// means.
std::optional<std::int64_t> latest_time();

/// Receives the bytes of an archive in order.
using ByteSink = std::function<Result<void>(const void* bytes, std::size_t size)>;

/// Writes the mounted image below `root` as one tar archive (PAX): directories, files, links, hard
/// links; everything is owned by root, sockets and devices are skipped. The same tree gives the
/// same bytes: entries are in order, and added files are as old as the youngest of the tree.
/// Nothing is younger than $SOURCE_DATE_EPOCH, if that is set.
Result<void> write_tree(int root, const std::vector<AddedFile>& added, const ByteSink& sink);

/// The same of what differs from `known`, as a layer of an OCI image on what `known` is of: what is
/// gone is a whiteout.
Result<void> write_changes(int root, const KnownTree& known, const ByteSink& sink);

}  // namespace spc
