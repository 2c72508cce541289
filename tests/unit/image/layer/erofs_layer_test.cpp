// Layers as erofs images, checked by the verifier, which shares no code with the writer.

#include "unit/image/layer/outcome.hpp"
#include "verify/verify.hpp"

using namespace spc;
using namespace spc::test;

namespace {

constexpr LayerLimits kErofs{.compression = LayerCompression::lz4, .format = LayerFormat::erofs};

/// Returns the verifier's refusal, empty if it accepts the image.
std::string refusal(const Converted& converted) {
  const std::string bytes = contents(converted.file.get());
  const auto verified = verify_layer(std::as_bytes(std::span(bytes)));
  return verified ? std::string() : verified.error().message();
}

}  // namespace

TEST_CASE("erofs_layer_is_independent_of_threads_and_verified") {
  Tar tar;
  std::uint32_t seed = 1;
  for (int i = 0; i < 60; ++i) {
    std::string data(static_cast<std::size_t>(i * i) * 137, '\0');
    fill_with_noise(data, seed, 24 + static_cast<unsigned>(i) % 6);
    tar.pax(record("SCHILY.xattr.user.i", std::string(static_cast<std::size_t>(i) * 100, 'v')));
    tar.file("d" + std::to_string(i % 7) + "/f" + std::to_string(i), data);
  }
  for (int i = 0; i < 2000; ++i) tar.file("many/" + std::to_string(i), std::to_string(i));
  tar.hard_link("many/linked", "many/7").symlink("link", std::string(4095, 't'));
  const std::string blob = gzip(tar.end());
  for (const auto compression : {LayerCompression::lz4, LayerCompression::none}) {
    const LayerLimits limits{.compression = compression, .format = LayerFormat::erofs};
    const auto first = convert(blob, 0, limits);
    REQUIRE(first.layer);
    CHECK(refusal(first) == "");
    for (const unsigned workers : {1U, 4U})
      CHECK(contents(convert(blob, workers, limits).file.get()) == contents(first.file.get()));
  }
}

TEST_CASE("erofs_layer_root_attributes_fit_or_are_refused") {
  const auto with_attribute = [](std::size_t bytes) {
    Tar tar;
    tar.pax(record("SCHILY.xattr.user.a", std::string(bytes, 'v'))).directory("./");
    return convert(gzip(tar.end()), 0, kErofs);
  };
  const auto fits = with_attribute(2000);
  REQUIRE(fits.layer);
  CHECK(refusal(fits) == "");
  const auto too_large = with_attribute(4000);
  CHECK_FALSE(too_large.layer);
  CHECK(too_large.why().find("attributes of the layer's root directory") != std::string::npos);
}
