#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "convert/converter.hpp"

namespace spc::test {

struct Found {
  mode_t mode = 0;  ///< with the type
  std::uint32_t inode = 0, links = 0, mtime = 0, device = 0;
  std::uint32_t uid = 0, gid = 0;
  std::uint64_t size = 0;
  std::string data;  ///< a file's bytes, a link's target
  std::map<std::string, std::string> xattrs;
};

/// Content of an image as seen by an independent reader (libsquashfs): path without leading slash →
/// entry. The root is "".
using Image = std::map<std::string, Found>;
/// Thrown if a file's data cannot be unpacked. Other errors are a std::logic_error.
struct DamagedData : std::logic_error {
  DamagedData() : std::logic_error("a file's data cannot be read") {}
};
Image read_image(int fd);

UniqueFd memory_file(std::string_view bytes = {});
std::string contents(int fd);

struct Converted {
  Result<ConvertedLayer> layer;
  UniqueFd file;
  [[nodiscard]] Image image() const { return read_image(file.get()); }
  [[nodiscard]] std::string why() const { return layer ? "no error" : layer.error().message(); }
};

/// Runs the converter in this process without the sandbox. Its output has passed verify_layer().
Converted convert(std::string_view blob, unsigned workers = 1, const LayerLimits& limits = {});

std::string gzip(std::string_view bytes);
std::string zstd(std::string_view bytes);

}  // namespace spc::test
