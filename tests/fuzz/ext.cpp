// An ext2, ext3 or ext4 file system of a user, as fuse reads it: for any content, reading ends with
// an error or with bytes.

#include "lib/image_walk.hpp"
#include "lib/memory_file.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(ext) {
  // Set the magic number of ext. Other magic numbers belong to other targets.
  std::string image(text_of(data, size));
  constexpr std::size_t kMagicAt = 1080;
  if (image.size() >= kMagicAt + 2) image.replace(kMagicAt, 2, "\x53\xef");
  if (image.starts_with("hsqs")) image[0] = 'x';
  const UniqueFd file = memory_file(image);
  const auto reader = fuse::open_image(file.get(), 0);
  if (!reader) {
    must_be_readable(reader.error());
    return 0;
  }
  fuzz::ImageWalk::over(**reader);
  return 0;
}
