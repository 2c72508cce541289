#include "image/pull/file_stream.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::size_t kChunk = std::size_t{256} << 10;
constexpr int kChunksAtOnce = 8;  // then the other layers get their turn

}  // namespace

Result<void> check_file(const FilePart& part) {
  struct stat status {};
  if (::fstat(part.file, &status) != 0) return Error::from_errno(errno, "look at the file");
  if (!S_ISREG(status.st_mode)) return Error(ErrorKind::invalid, "is not a regular file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (part.offset > size || part.size > size - part.offset) return Error(ErrorKind::corrupt, "is not complete");
  return {};
}

Result<std::size_t> read_some(const FilePart& part, std::uint64_t at, std::span<std::byte> into) {
  const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), part.size - at));
  for (;;) {
    const ssize_t got = ::pread(part.file, into.data(), wanted, static_cast<off_t>(part.offset + at));
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) return Error(ErrorKind::corrupt, "was truncated while it was read");
    if (errno != EINTR) return Error::from_errno(errno, "read it");
  }
}

void FileStream::start() {
  if (auto opened = open(); !opened) fail(std::move(opened).error());
}

void FileStream::watch(std::vector<pollfd>& descriptors) const {
  if (part_) descriptors.push_back({.fd = part_->file.get(), .events = POLLIN, .revents = 0});
}

void FileStream::advance() {
  for (int i = 0; i < kChunksAtOnce && !finished() && !paused_; ++i) {
    if (auto moved = move_chunk(); !moved) fail(std::move(moved).error());
  }
}

Result<void> FileStream::open() {
  part_ = SPC_TRY(open_());
  SPC_TRY(check_file(bytes()));
  if (part_->size == layer_.size) return {};
  return Error(ErrorKind::corrupt, formatted("has {} bytes instead of {}", part_->size, layer_.size));
}

Result<void> FileStream::move_chunk() {
  if (from_ == chunk_.size()) {
    chunk_.resize(kChunk);
    chunk_.resize(SPC_TRY(read_some(bytes(), sent_, chunk_)));
    from_ = 0;
  }
  const auto bytes = std::span(chunk_).subspan(from_);
  if (sink_.take(bytes) == HttpHandler::Take::later) {
    paused_ = true;
    return {};
  }
  sent_ += bytes.size();
  from_ = chunk_.size();
  return {};
}

}  // namespace spc
