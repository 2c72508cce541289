#include "launch/host/data_file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/format.hpp"
#include "image/reference/squashfs_super.hpp"

namespace spc {
namespace {

Error cannot_open(int err, const std::string& path) {
  auto error = Error::from_errno(err, "open mount source " + in_quotes(path));
  if (err == ENOENT)
    return std::move(error).hint("the source must exist on every node of the step");
  return std::move(error).hint("it is opened with the user's permissions on the node");
}

}  // namespace

Result<UniqueFd> open_data_file(const std::string& path) {
  const UniqueFd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!place || ::fstat(place.get(), &status) != 0) return cannot_open(errno, path);
  if (!S_ISREG(status.st_mode)) {
    return Error(ErrorKind::invalid, formatted("open mount source {}: not a file", in_quotes(path)))
        .hint("sqsh needs a file");
  }
  const std::string again = "/proc/self/fd/" + std::to_string(place.get());
  UniqueFd file(::open(again.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return cannot_open(errno, path);
  std::array<std::byte, SquashfsSuper::kBytes> head{};
  const ssize_t got = ::pread(file.get(), head.data(), head.size(), 0);
  if (got < 0) return Error::from_errno(errno, "read mount source " + in_quotes(path));
  const auto bytes = std::span(head).first(static_cast<std::size_t>(got));
  if (!looks_like_squashfs(bytes)) {
    return Error(ErrorKind::invalid,
                 formatted("open mount source {}: not a squashfs", in_quotes(path)))
        .hint("create one: mksquashfs DIRECTORY FILE.sqsh");
  }
  SPC_TRY_DURING("open mount source " + in_quotes(path),
                 parse_squashfs_super(bytes, static_cast<std::uint64_t>(status.st_size)));
  return file;
}

Result<void> refuse_fuse(int file) {
  struct statfs status {};
  if (::fstatfs(file, &status) != 0) return Error::from_errno(errno, "ask for its file system");
  if (status.f_type != FUSE_SUPER_MAGIC) return {};
  return Error(ErrorKind::refused, "it is on a FUSE file system")
      .hint("copy it to a local disk or to a network file system of the kernel");
}

}  // namespace spc
