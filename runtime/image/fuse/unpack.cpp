#include <sys/stat.h>

#include <array>
#include <cerrno>

#include "image/fuse/ext_reader.hpp"
#include "image/reference/squashfs_super.hpp"

extern "C" {
#include <squashfuse/decompress.h>  // last: it defines _POSIX_C_SOURCE
}

namespace spc::fuse {
namespace {

bool knows(std::uint16_t compressor) { return ::sqfs_decompressor_get(compressor) != nullptr; }

bool unpack(std::uint16_t compressor, std::span<const std::byte> block, std::byte* into,
            std::size_t& size) {
  const sqfs_decompressor decompress = ::sqfs_decompressor_get(compressor);
  return decompress(const_cast<std::byte*>(block.data()), block.size(), into, &size) == SQFS_OK;
}

}  // namespace

Result<std::unique_ptr<ImageReader>> open_image(int file, std::uint64_t offset) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return Error::from_errno(errno, "stat the image");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (offset < size && size - offset >= kExtHeadBytes) {
    const ImageFile image(file, offset, size - offset);
    std::array<std::byte, kExtHeadBytes> head{};
    SPC_TRY(image.read(0, head));
    if (!looks_like_squashfs(head) && looks_like_ext(head)) return ExtReader::open(image, {});
  }
  return open_image(file, offset, size, {knows, unpack}, {}, ErofsForm::of_users);
}

}  // namespace spc::fuse
