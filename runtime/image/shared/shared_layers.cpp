// Converted layers: a file each, with the SHA-256 of what is before it as its last bytes.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/sha256.hpp"
#include "image/shared/shared_store.hpp"

namespace spc {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

/// NFS may remember for half a minute what was not there.
void ask_server(int directory) {
  struct statx now {};
  ::statx(directory, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_MTIME, &now);
}

std::string path_of(const SharedStore::Layer& layer) { return layer.form + "/" + layer.name.hex(); }

/// Reads from its beginning; returns the digest of these bytes.
Result<Digest> copy_bytes(int from, int to, std::uint64_t size) {
  std::vector<std::byte> piece(kPieceBytes);
  Sha256 hash;
  for (std::uint64_t at = 0; at < size;) {
    const ssize_t got =
        ::pread(from, piece.data(),
                static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), size - at)),
                static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Error::from_errno(got < 0 ? errno : EIO, "read it");
    const auto bytes = std::span(piece).first(static_cast<std::size_t>(got));
    hash.update(bytes);
    SPC_TRY(write_all(to, bytes));
    at += bytes.size();
  }
  return hash.finish();
}

}  // namespace

bool SharedStore::has_layer(const Layer& layer) const {
  ask_server(layers_.get());
  const UniqueFd form(
      ::openat(layers_.get(), layer.form.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!form) return false;
  ask_server(form.get());
  return ::faccessat(form.get(), layer.name.hex().c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

Result<bool> SharedStore::copy_layer(const Layer& layer, int to) const {
  if (!has_delivered(layer.place, layer.blob)) return false;
  const UniqueFd file(::openat(layers_.get(), path_of(layer).c_str(),
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  Digest wanted;
  const bool has_sum =
      size > wanted.bytes.size() && ::pread(file.get(), wanted.bytes.data(), wanted.bytes.size(),
                                            static_cast<off_t>(size - wanted.bytes.size())) ==
                                        static_cast<ssize_t>(wanted.bytes.size());
  const std::string what =
      formatted("layer {} of shared store {}", in_quotes(layer.name.str()), in_quotes(directory_));
  if (has_sum && SPC_TRY_DURING("copy " + what,
                                copy_bytes(file.get(), to, size - wanted.bytes.size())) == wanted) {
    ::futimens(file.get(), nullptr);
    return true;
  }
  remove_layer(layer);
  return Error(ErrorKind::corrupt, what + ": was damaged, and is removed");
}

Result<void> SharedStore::keep_layer(const Layer& layer, int from) const {
  if (::faccessat(layers_.get(), path_of(layer).c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0) return {};
  struct stat status {};
  if (::fstat(from, &status) != 0) return Error::from_errno(errno, "look at a layer");
  if (::mkdirat(layers_.get(), layer.form.c_str(), 0700) != 0 && errno != EEXIST) {
    return Error::from_errno(errno, "make a directory in shared store " + in_quotes(directory_));
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  auto copy = SPC_TRY(
      new_blob(layer.name, size + sizeof(Digest)));  // until it is published it is only a file
  const std::string step = "write a layer into shared store " + in_quotes(directory_);
  const Digest sum = SPC_TRY_DURING(step, copy_bytes(from, copy.file(), size));
  SPC_TRY_DURING(step, write_all(copy.file(), std::as_bytes(std::span(sum.bytes))));
  if (::fsync(copy.file()) != 0 || ::renameat(temporary_.get(), copy.name().c_str(), layers_.get(),
                                              path_of(layer).c_str()) != 0) {
    return Error::from_errno(errno, step);
  }
  return {};
}

void SharedStore::remove_layer(const Layer& layer) const {
  ::unlinkat(layers_.get(), path_of(layer).c_str(), 0);
}

}  // namespace spc
