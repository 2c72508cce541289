#pragma once

#include <thread>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// fsync in a thread, since it takes seconds on a slow disk and other layers continue meanwhile. Without it, a published
/// layer could be empty after a power failure.
class FileSync {
 public:
  /// `file` is borrowed until finish() or destruction.
  explicit FileSync(int file);
  FileSync(const FileSync&) = delete;
  FileSync& operator=(const FileSync&) = delete;
  ~FileSync();

  /// Readable when finish() will not block.
  [[nodiscard]] int descriptor() const { return done_.get(); }
  Result<void> finish();

 private:
  UniqueFd done_;
  int error_ = 0;
  std::thread thread_;
};

}  // namespace spc
