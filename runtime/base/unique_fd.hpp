#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace spc {

// --- unique fd ---

/// Owns one file descriptor and closes it once. Ignores errors of close() and keeps errno: if a
/// file's content matters, call fsync before.
class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  explicit operator bool() const noexcept { return fd_ >= 0; }

  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) {
      const int saved = errno;
      ::close(fd_);  // never retried on EINTR: Linux has closed it already
      errno = saved;
    }
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// --- directory ---

/// The entries of a directory without "." and "..", read one at a time in the order of the file
/// system.
///
///   for (DirectoryReader files(path); files.next();) names.emplace_back(files.name());
///
/// Entries may be removed during the iteration. Entries added during it may or may not be visited.
class DirectoryReader {
 public:
  /// Takes an open directory, or the failed result of opening it. errno then becomes the error.
  explicit DirectoryReader(UniqueFd opened)
      : stream_(opened ? ::fdopendir(opened.get()) : nullptr, ::closedir),
        error_(stream_ ? 0 : errno) {
    if (stream_) (void)opened.release();
  }
  explicit DirectoryReader(const std::string& path)
      : DirectoryReader(UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))) {}

  /// Advances to the next entry; false at the end or after an error.
  bool next() {
    do {
      errno = 0;
      entry_ = stream_ ? ::readdir(stream_.get()) : nullptr;
    } while (entry_ != nullptr && (name() == "." || name() == ".."));
    if (entry_ == nullptr && stream_) error_ = errno;
    return entry_ != nullptr;
  }
  /// Returns the entry's name, valid until the next one.
  [[nodiscard]] std::string_view name() const { return entry_->d_name; }
  [[nodiscard]] const char* c_name() const { return entry_->d_name; }
  /// Returns DT_*; DT_UNKNOWN if the file system does not report the type here.
  [[nodiscard]] unsigned char type() const { return entry_->d_type; }

  [[nodiscard]] int descriptor() const { return stream_ ? ::dirfd(stream_.get()) : -1; }
  /// Returns the errno of opening or reading the directory; 0: none.
  [[nodiscard]] int error() const { return error_; }

 private:
  std::unique_ptr<DIR, int (*)(DIR*)> stream_;
  const dirent* entry_ = nullptr;
  int error_;
};

}  // namespace spc
