#include "launch/host/local_image.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "image/reference/request.hpp"
#include "image/reference/sif.hpp"
#include "image/reference/squashfs_super.hpp"
#include "protocol/image_record.hpp"

namespace spc {
namespace {

constexpr std::size_t kHead = 2048;  // all signatures lie in it
constexpr std::size_t kTarBlock = 512;

using Bytes = std::span<const std::byte>;

bool has_at(Bytes head, std::size_t offset, std::string_view text) {
  return head.size() >= offset + text.size() &&
         std::memcmp(head.data() + offset, text.data(), text.size()) == 0;
}

/// The first block of a tar archive, of the old kind too: its checksum is right.
bool looks_like_tar(Bytes head) {
  if (head.size() < kTarBlock) return false;
  if (has_at(head, 257, "ustar")) return true;
  constexpr std::size_t kSumAt = 148;
  constexpr std::size_t kSumBytes = 8;
  unsigned sum = 0;
  for (std::size_t i = 0; i < kTarBlock; ++i) {
    sum += i >= kSumAt && i < kSumAt + kSumBytes ? unsigned{' '} : static_cast<unsigned>(head[i]);
  }
  const std::string text(reinterpret_cast<const char*>(head.data()) + kSumAt, kSumBytes);
  const char* const digits = text.c_str();
  char* end = nullptr;
  return std::strtoul(digits, &end, 8) == sum && end != digits && head[0] != std::byte{0};
}

/// Of ext2, ext3, ext4 or EROFS: by their super blocks.
bool looks_like_file_system(Bytes head) {
  return has_at(head, 1080, "\x53\xef") || has_at(head, 1024, "\xe2\xe1\xf5\xe0");
}

bool looks_like_archive(Bytes head) {
  constexpr std::array<std::string_view, 4> kCompressed{"\x1f\x8b", "\x28\xb5\x2f\xfd",
                                                        "\xfd"
                                                        "7zXZ",
                                                        "BZh"};
  return looks_like_tar(head) ||
         std::any_of(kCompressed.begin(), kCompressed.end(),
                     [&](std::string_view magic) { return has_at(head, 0, magic); });
}

/// What people name by mistake.
const char* name_of_content(Bytes head) {
  if (head.empty()) return "an empty file";
  if (has_at(head, 0,
             "\x7f"
             "ELF"))
    return "a program";
  if (has_at(head, 0, "version https://git-lfs")) return "a Git LFS pointer, not the file itself";
  if (has_at(head, 0, "#!")) return "a script";
  if (has_at(head, 0, "PK\3\4")) return "a zip archive";
  return "something else";
}

Error not_an_image(const std::string& path, const std::string& what) {
  return Error(ErrorKind::invalid, formatted("open image {}: it is {}", in_quotes(path), what))
      .hint(
          "an image is a squashfs (.sqsh), a SIF file, an ext4 or EROFS file system, a tar archive "
          "or a directory");
}

Result<std::string> read_at(int file, std::uint64_t offset, std::size_t size,
                            const std::string& path) {
  std::string bytes(size, '\0');
  std::size_t got = 0;
  while (got < size) {
    const ssize_t count =
        ::pread(file, bytes.data() + got, size - got, static_cast<off_t>(offset + got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::from_errno(errno, "read image " + in_quotes(path));
    if (count == 0) break;
    got += static_cast<std::size_t>(count);
  }
  bytes.resize(got);
  return bytes;
}

Result<void> check_squashfs(int file, std::uint64_t offset, std::uint64_t end,
                            const std::string& path) {
  const std::string head = SPC_TRY(read_at(file, offset, SquashfsSuper::kBytes, path));
  SPC_TRY(parse_squashfs_super(std::as_bytes(std::span(head)), end - offset));
  return {};
}

Result<std::uint64_t> squashfs_in_sif(int file, Bytes head, std::uint64_t size,
                                      const std::string& path) {
  const auto table = SPC_TRY(parse_sif_header(head, size));
  const std::string contents = SPC_TRY(read_at(file, table.offset, table.size, path));
  const auto root = SPC_TRY(
      find_sif_root(std::as_bytes(std::span(contents)), size, Platform::host().architecture));
  SPC_TRY(check_squashfs(file, root.offset, root.offset + root.size, path));
  return root.offset;
}

Result<LocalImage> look_into_file(LocalImage image, const struct stat& status,
                                  const std::string& path) {
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::string text = SPC_TRY(read_at(image.file.get(), 0, kHead, path));
  const Bytes head = std::as_bytes(std::span(text));
  const auto recognised = [&]() -> Result<void> {
    if (looks_like_squashfs(head)) {
      SPC_TRY(check_squashfs(image.file.get(), 0, size, path));
    } else if (looks_like_file_system(head)) {
      return {};  // the process that serves it has its reader
    } else if (looks_like_sif(head)) {
      image.offset = SPC_TRY(squashfs_in_sif(image.file.get(), head, size, path));
    } else {
      image.kind = LocalImage::Kind::archive;
    }
    return {};
  };
  SPC_TRY_DURING("open image " + in_quotes(path), recognised());
  if (image.kind == LocalImage::Kind::archive && !looks_like_archive(head))
    return not_an_image(path, name_of_content(head));
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    image.warning =
        formatted("image {} is writable by others{}, who control its content", in_quotes(path),
                  (status.st_mode & S_IWOTH) != 0 ? "" : " in its group");
  }
  return image;
}

Result<LocalImage> look_into_directory(LocalImage image, const std::string& path) {
  // Inside, nobody would ask whether the user may search it: the root of the container is that of
  // the writable layer.
  if (::faccessat(image.file.get(), ".", X_OK, 0) != 0) {
    return Error::from_errno(errno, "open image " + in_quotes(path))
        .hint("it is opened with the user's permissions on the node");
  }
  if (::faccessat(image.file.get(), "oci-layout", F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
    std::string bare = path;
    while (bare.size() > 1 && bare.back() == '/') bare.pop_back();
    return Error(ErrorKind::invalid,
                 formatted("open image {}: it is an OCI image layout, not a root directory",
                           in_quotes(path)))
        .hint("use oci:" + bare);
  }
  return image;
}

const char* name_of_type(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

Result<LocalImage> open_local_image(const std::string& typed, const std::string& home) {
  const std::string path = typed.starts_with("~/") ? home + typed.substr(1) : typed;
  UniqueFd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!place || ::fstat(place.get(), &status) != 0) {
    const int err = errno;
    auto error = Error::from_errno(err, "open image " + in_quotes(typed));
    if (err == ENOENT) return std::move(error).hint("it must exist on every node of the step");
    return std::move(error).hint("it is opened with the user's permissions on the node");
  }
  const bool is_directory = S_ISDIR(status.st_mode);
  if (!is_directory && !S_ISREG(status.st_mode))
    return not_an_image(typed, name_of_type(status.st_mode));

  LocalImage image;
  image.kind = is_directory ? LocalImage::Kind::directory : LocalImage::Kind::squashfs;
  const std::string again = "/proc/self/fd/" + std::to_string(place.get());
  image.file.reset(::open(again.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!image.file) {
    return Error::from_errno(errno, "open image " + in_quotes(typed))
        .hint("it is opened with the user's permissions on the node");
  }
  if (!is_directory) return look_into_file(std::move(image), status, typed);
  image.file = std::move(place);
  return look_into_directory(std::move(image), typed);
}

std::string did_you_mean_file(const std::string& image) {
  struct stat status {};
  const bool is_there =
      image.find(':') == std::string::npos && image.find('\0') == std::string::npos &&
      ::stat(image.c_str(), &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
  return is_there ? formatted("there is a file of this name here: did you mean {}?",
                              in_quotes("./" + image))
                  : "";
}

}  // namespace spc
