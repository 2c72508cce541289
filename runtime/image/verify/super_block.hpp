#pragma once

#include "image/verify/layer_bytes.hpp"

namespace spc::verify {

inline constexpr std::uint64_t kBlockBytes = std::uint64_t{128} << 10;

/// Where everything lies. Having one means: super block, compressor options, the table of owners, the lists of places and
/// the padding are exactly what our writer makes for an image of these sizes, and all ranges are in this order, within
/// the file, without gaps.
struct Layout {
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  std::uint32_t inode_count = 0;
  std::uint64_t root = 0;  ///< a reference into the inode table
  Range data;
  Range inodes;
  Range directories;
  std::uint32_t fragment_count = 0;
  std::uint64_t fragment_places = 0;  ///< of the list where the fragments' blocks begin
  Range fragments;
  bool has_attributes = false;
  std::uint32_t attribute_sets = 0;
  std::uint64_t attribute_places = 0;  ///< of the list where the sets' blocks begin
  Range attributes;
  Range sets;
  bool fragments_stored_as_is = false;  ///< a flag that depends on the fragments

  static Result<Layout> read(LayerBytes& layer);
};

/// How many metadata blocks a table of 16-byte entries takes.
constexpr std::uint64_t blocks_for(std::uint64_t entries) { return (entries * 16 + 8191) / 8192; }

/// The 64-bit number at `offset`, which must lie within the file.
Result<std::uint64_t> number_at(LayerBytes& layer, std::uint64_t offset);

}  // namespace spc::verify
