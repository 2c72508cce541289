#include "image/fuse/image_file.hpp"

#include <unistd.h>

#include <cerrno>

namespace spc::fuse {

Result<void> ImageFile::read(std::uint64_t position, std::span<std::byte> into) const {
  if (position > size_ || into.size() > size_ - position)
    return damaged("a position beyond the end of the image");
  std::uint64_t at = offset_ + position;
  while (!into.empty()) {
    const ssize_t got = ::pread(file_, into.data(), into.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read the image");
    if (got == 0) return Error(ErrorKind::corrupt, "the image was truncated");
    into = into.subspan(static_cast<std::size_t>(got));
    at += static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace spc::fuse
