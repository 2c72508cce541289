// A squashfs of a user, as fuse reads it: for any content, reading ends with an error or with
// bytes.
// outcome 134 contained: damaged tables

#include "lib/image_walk.hpp"
#include "lib/memory_file.hpp"
#include "reference/first_bytes.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(squashfs) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto super = parse_squashfs_super(bytes.first(std::min(size, sizeof(SquashfsSuper))), size);
  const UniqueFd file = memory_file(text_of(data, size));
  const auto reader = fuse::open_image(file.get(), 0);
  if (!reader) {
    must_be_readable(reader.error());
    return 0;
  }
  must(super.has_value() || !looks_like_squashfs(bytes),
       "a squashfs that can be read has a super block");
  fuzz::ImageWalk::over(**reader);
  return 0;
}
