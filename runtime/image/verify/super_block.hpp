#pragma once

#include "image/verify/block_reader.hpp"
#include "image/verify/input/layer_bytes.hpp"

namespace spc::verify {

inline constexpr std::uint64_t kBlockBytes = std::uint64_t{128} << 10;

/// Positions of all parts. A value means: super block, compressor options, ID table, position lists
/// and padding are exactly what our writer generates for an image of these sizes, and all ranges
/// are in this order, within the file, without gaps.
struct Layout {
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  Codec codec = Codec::zstd;
  std::uint32_t inode_count = 0;
  std::uint16_t group = 0;  ///< of all inodes: the place in the list of owners
  std::uint64_t root = 0;   ///< a reference into the inode table
  Range data;
  Range inodes;
  Range directories;
  std::uint32_t fragment_count = 0;
  std::uint64_t fragment_places = 0;  ///< of the list of fragment block positions
  Range fragments;
  bool has_attributes = false;
  std::uint32_t attribute_sets = 0;
  std::uint64_t attribute_places = 0;  ///< of the list of attribute block positions
  Range attributes;
  Range sets;
  bool fragments_stored_as_is = false;  ///< a flag that depends on the fragments

  static Result<Layout> read(LayerBytes& layer);
};

/// Number of metadata blocks of a table of 16-byte entries.
constexpr std::uint64_t blocks_for(std::uint64_t entries) { return (entries * 16 + 8191) / 8192; }

/// The 64-bit number at `offset`, which must be within the file.
Result<std::uint64_t> number_at(LayerBytes& layer, std::uint64_t offset);

}  // namespace spc::verify
