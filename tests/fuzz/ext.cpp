// An ext2, ext3 or ext4 file system that a user brings, as fuse reads it: whatever is in it,
// reading ends, in an error or in bytes.

#include "lib/image_walk.hpp"
#include "lib/memory_file.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(ext) {
  // Its magic number is there: what has another one belongs to other targets.
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
