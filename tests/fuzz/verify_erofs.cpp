// The verifier on EROFS images. The input is a list of changes to the tables of a small image, four
// bytes each. The checksum is repaired afterwards.

#include <span>

#include "lib/property.hpp"
#include "unit/image/samples/erofs_image.hpp"
#include "verify/verify.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

constexpr std::size_t kMostChanges = 64;

/// Returns the position of the byte with this number among those of the tables.
std::size_t place_of(const test::ErofsImage& image, std::size_t number) {
  std::size_t all = 0;
  for (const auto& [begin, end] : image.tables) all += end - begin;
  number %= all;
  for (const auto& [begin, end] : image.tables) {
    if (number < end - begin) return begin + number;
    number -= end - begin;
  }
  return 0;
}

/// Applies a change: the byte's number (two bytes), operation, value.
void change_byte(test::ErofsImage& image, const std::uint8_t* change) {
  const std::size_t at = place_of(image, std::size_t{change[0]} << 8U | change[1]);
  const std::uint8_t value = change[3];
  char& byte = image.bytes[at];
  switch (change[2] % 4) {
    case 0: byte = static_cast<char>(value); break;
    case 1: byte = static_cast<char>(byte + value); break;
    case 2: byte = static_cast<char>(byte ^ value); break;
    default:
      image.bytes.replace(at, 4, std::string(image.bytes, place_of(image, at + value), 4));
      break;  // a number copied from another offset
  }
}

}  // namespace

FUZZ_TARGET(verify_erofs) {
  static const test::ErofsImage original = test::erofs_sample(false).image();
  test::ErofsImage image = original;
  for (std::size_t at = 0; at + 4 <= size && at < kMostChanges * 4; at += 4)
    change_byte(image, data + at);
  if (size % 4 == 1) {
    const std::size_t blocks = image.bytes.size() / 4096 * data[size - 1] / 255;
    image.bytes.resize(blocks * 4096);
    if (blocks > 0) image.set(1024 + 36, static_cast<std::uint32_t>(blocks));
  }
  if (image.bytes.size() >= 4096) image.seal();
  const auto accepted = verify_layer(std::as_bytes(std::span(image.bytes)));
  if (accepted) return 0;
  must_be_readable(accepted.error());
  must(accepted.error().kind() == ErrorKind::refused, "nothing but a refusal");
  return 0;
}
