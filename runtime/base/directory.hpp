#pragma once

#include <dirent.h>
#include <fcntl.h>

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"

namespace spc {

/// The entries of a directory without "." and "..", one after the other as the file system has
/// them: never all at once.
///
///   for (DirectoryReader files(path); files.next();) names.emplace_back(files.name());
///
/// Entries may be removed meanwhile; of what is added meanwhile it is open whether it is met.
class DirectoryReader {
 public:
  /// An open directory, or the answer of the call that failed to open it: its errno is kept as the
  /// error.
  explicit DirectoryReader(UniqueFd opened)
      : stream_(opened ? ::fdopendir(opened.get()) : nullptr, ::closedir),
        error_(stream_ ? 0 : errno) {
    if (stream_) (void)opened.release();
  }
  explicit DirectoryReader(const std::string& path)
      : DirectoryReader(UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))) {}

  /// Goes on to the next entry; false at the end or after an error.
  bool next() {
    do {
      errno = 0;
      entry_ = stream_ ? ::readdir(stream_.get()) : nullptr;
    } while (entry_ != nullptr && (name() == "." || name() == ".."));
    if (entry_ == nullptr && stream_) error_ = errno;
    return entry_ != nullptr;
  }
  /// Of the entry, until the next one.
  [[nodiscard]] std::string_view name() const { return entry_->d_name; }
  [[nodiscard]] const char* c_name() const { return entry_->d_name; }
  /// DT_*; DT_UNKNOWN where the file system does not say it here.
  [[nodiscard]] unsigned char type() const { return entry_->d_type; }

  [[nodiscard]] int descriptor() const { return stream_ ? ::dirfd(stream_.get()) : -1; }
  /// The errno of opening or reading it; 0: none.
  [[nodiscard]] int error() const { return error_; }

 private:
  std::unique_ptr<DIR, int (*)(DIR*)> stream_;
  const dirent* entry_ = nullptr;
  int error_;
};

}  // namespace spc
