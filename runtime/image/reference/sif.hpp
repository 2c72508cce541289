#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.hpp"

namespace spc {

/// SIF, the single file that Apptainer and SingularityCE make: a header, a table of what is in the
/// file, and the things themselves, the root file system among them. Nothing here reads a file;
/// errors say what is wrong without naming it.
struct SifTable {
  static constexpr std::size_t kHeaderBytes = 128;

  std::uint64_t offset = 0;  ///< of the table in the file
  std::size_t size = 0;      ///< bytes; at most about half a MiB
};

struct SifPartition {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  ///< bytes
};

bool looks_like_sif(std::span<const std::byte> head);

/// Where the table is. `head`: the file's first bytes; `file_size`: bytes.
Result<SifTable> parse_sif_header(std::span<const std::byte> head, std::uint64_t file_size);

/// The squashfs with the root file system, for this machine's `architecture` as image indexes name
/// it (amd64, arm64, …). What cannot be used is refused by name: encrypted, ext3, an overlay alone,
/// an OCI image in a SIF, another architecture.
Result<SifPartition> find_sif_root(std::span<const std::byte> table, std::uint64_t file_size,
                                   std::string_view architecture);

}  // namespace spc
