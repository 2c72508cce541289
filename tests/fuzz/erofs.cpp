// An EROFS image, as fuse and the layer writer read layers: for any content, reading ends with an
// error or with bytes.

#include "lib/image_walk.hpp"
#include "lib/memory_file.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(erofs) {
  // Set EROFS's magic number. Other magic numbers belong to the target squashfs.
  std::string image(text_of(data, size));
  constexpr std::size_t kMagicAt = 1024;
  if (image.size() >= kMagicAt + 4) image.replace(kMagicAt, 4, "\xe2\xe1\xf5\xe0");
  const UniqueFd file = memory_file(image);
  const auto reader = fuse::open_image(file.get(), 0);
  if (!reader) {
    must_be_readable(reader.error());
    return 0;
  }
  fuzz::ImageWalk::over(**reader);
  return 0;
}
