#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/image_record.hpp"
#include "base/result.hpp"

namespace spc {

/// Where an image came from. The digests of indexes that lead to it tell whether a tag has moved.
struct ImageOrigin {
  std::string registry;
  std::string repository;
  std::string platform;
  std::vector<Digest> indexes;
};

/// The contents of a file in images/: see base/image_record.hpp for how it lies there.
struct ImageRecord {
  std::int64_t public_until = 0;
  std::vector<Digest> layers;
  std::string settings;  ///< records `key=value\0`
  std::string manifest;
  std::string config;
  ImageOrigin origin;
};

std::string serialize(const ImageRecord& record);
Result<ImageRecord> parse_image_record(std::string_view bytes);

}  // namespace spc
