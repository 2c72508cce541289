#pragma once

#include <string>
#include <string_view>

#include "unit/has.hpp"
#include "unit/image/samples/layer_image.hpp"
#include "unit/image/samples/layer_tar.hpp"

namespace spc::test {

inline Image image_of(const Tar& tar) {
  const auto converted = convert(tar.end());
  INFO(converted.why());
  REQUIRE(converted.layer);
  return converted.image();
}

/// Returns the reason why the blob is not converted.
inline std::string reason(std::string_view blob, const LayerLimits& limits = {}) {
  const auto converted = convert(blob, 1, limits);
  REQUIRE_FALSE(converted.layer);
  return converted.why();
}

}  // namespace spc::test
