#include <sys/stat.h>

#include <cerrno>

#include "image/fuse/image_reader.hpp"

extern "C" {
#include <squashfuse/decompress.h>  // last: it defines _POSIX_C_SOURCE
}

namespace spc::fuse {
namespace {

bool knows(std::uint16_t compressor) { return ::sqfs_decompressor_get(compressor) != nullptr; }

bool unpack(std::uint16_t compressor, std::span<const std::byte> block, std::byte* into, std::size_t& size) {
  const sqfs_decompressor decompress = ::sqfs_decompressor_get(compressor);
  return decompress(const_cast<std::byte*>(block.data()), block.size(), into, &size) == SQFS_OK;
}

}  // namespace

Result<std::unique_ptr<ImageReader>> open_image(int file, std::uint64_t offset) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return Error::from_errno(errno, "stat the image");
  return open_image(file, offset, static_cast<std::uint64_t>(status.st_size), {knows, unpack}, {});
}

}  // namespace spc::fuse
