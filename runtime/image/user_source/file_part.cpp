#include "image/user_source/file_part.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/sha256.hpp"

namespace spc::user_source {
namespace {

constexpr std::chrono::seconds kBetweenLines{15};

}  // namespace

Result<FilePart> ordinary_file(UniqueFd file, const std::string& what) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Error::from_errno(errno, "look at " + what);
  if (!S_ISREG(status.st_mode))
    return Error(ErrorKind::invalid, what + " is not a regular file")
        .hint("an image is a file, or an OCI layout: oci:DIR");
  return FilePart{.file = std::make_shared<const UniqueFd>(std::move(file)),
                  .size = static_cast<std::uint64_t>(status.st_size)};
}

Result<FilePart> open_ordinary_file(const std::string& path) {
  // O_NONBLOCK: a FIFO would be waited for otherwise. For ordinary files it means nothing.
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) {
    const int err = errno;
    auto error = Error::from_errno(err, "open " + in_quotes(path));
    if (err == ENOENT) return std::move(error).hint("it must exist on every node of the step");
    if (err == EACCES)
      return std::move(error).hint("it is opened with the user's permissions on the node");
    return error;
  }
  return ordinary_file(std::move(file), in_quotes(path));
}

Result<FilePart> file_with(std::string_view bytes, std::string media_type) {
  auto file = SPC_TRY(sealed_memory_file("spank-container image", bytes));
  return FilePart{.file = std::make_shared<const UniqueFd>(std::move(file)),
                  .size = bytes.size(),
                  .media_type = std::move(media_type)};
}

Result<std::size_t> read_at(const FilePart& part, std::uint64_t offset, std::span<std::byte> into) {
  if (offset >= part.size) return std::size_t{0};
  const auto wanted =
      static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), part.size - offset));
  std::size_t got = 0;
  while (got < wanted) {
    const ssize_t now = ::pread(part.file->get(), into.data() + got, wanted - got,
                                static_cast<off_t>(part.offset + offset + got));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return Error::from_errno(errno, "read");
    if (now == 0) return Error(ErrorKind::corrupt, "the file was truncated");
    got += static_cast<std::size_t>(now);
  }
  return got;
}

Result<std::string> read_part(const FilePart& part, std::size_t limit, const std::string& what) {
  if (part.size > limit)
    return Error(ErrorKind::invalid, formatted("{}: is larger than {} bytes", what, limit));
  std::string text(static_cast<std::size_t>(part.size), '\0');
  SPC_TRY_DURING(what, read_at(part, 0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<Digest> digest_of(const FilePart& part, const std::string& what, Log& log) {
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  Sha256 hash;
  std::chrono::steady_clock::time_point next_line{};
  for (std::uint64_t at = 0; at < part.size;) {
    if (const auto now = std::chrono::steady_clock::now(); now >= next_line) {
      next_line = now + kBetweenLines;
      log.write(LogLevel::info, formatted("reading {}: {} of {} MB", what, at / 1'000'000,
                                          (part.size + 999'999) / 1'000'000));
    }
    const std::size_t got = SPC_TRY(read_at(part, at, buffer));
    hash.update(std::span(buffer).first(got));
    at += got;
  }
  return hash.finish();
}

}  // namespace spc::user_source
