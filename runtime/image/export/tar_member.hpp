#pragma once

#include <cstdint>
#include <string>

namespace spc {

// A tar archive in parts, for one whose first member is written before its name is known.

inline constexpr std::uint64_t kTarHeaderBytes = 512;

/// The header of a world-readable regular file of `size` bytes; `path` has at most 99 characters.
/// Sizes of 8 GiB and more are written in binary, as by GNU tar.
std::string tar_header(const std::string& path, std::uint64_t size);

/// The padding after `size` bytes of content.
std::string tar_padding(std::uint64_t size);

}  // namespace spc
