#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.hpp"
#include "protocol/layer.hpp"

namespace spc {

// --- squashfs super block ---

/// Returns whether `head` starts a squashfs of any version.
bool looks_like_squashfs(std::span<const std::byte> head);

/// Returns the super block of a squashfs 4.0 that is complete, whose tables all begin within it and
/// whose compressor is known to compressor_name(). `head`: the image's first bytes; `available`:
/// bytes from there to the end of the file. The error describes the defect without naming the
/// image.
Result<SquashfsSuper> parse_squashfs_super(std::span<const std::byte> head,
                                           std::uint64_t available);

/// Returns "gzip", "zstd", …, or nullptr for an unknown number.
const char* compressor_name(std::uint16_t compressor);

// --- SIF ---

/// Object table of a SIF, the image file of Apptainer and SingularityCE: a header, a table of
/// objects, and the objects, among them the root file system. These functions parse bytes and open
/// no file. Errors describe the defect without naming the file.
struct SifTable {
  static constexpr std::size_t kHeaderBytes = 128;

  std::uint64_t offset = 0;  ///< offset of the table in the file
  std::size_t size = 0;      ///< bytes; at most about half a MiB
};

/// The partition with the root file system.
struct SifPartition {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  ///< bytes
};

bool looks_like_sif(std::span<const std::byte> head);

/// Returns the position of the object table. `head`: the file's first bytes; `file_size`: bytes.
Result<SifTable> parse_sif_header(std::span<const std::byte> head, std::uint64_t file_size);

/// Returns the squashfs with the root file system for this machine's `architecture`, named as in
/// image indexes (amd64, arm64, …). Refuses, by name: encrypted, ext3, an overlay alone, an OCI
/// image in a SIF, another architecture.
Result<SifPartition> find_sif_root(std::span<const std::byte> table, std::uint64_t file_size,
                                   std::string_view architecture);

}  // namespace spc
