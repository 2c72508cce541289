#pragma once

#include <thread>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// fsync in a thread of its own, which takes seconds on a slow disk: other layers go on meanwhile. Without it a layer
/// that has its name could be empty after a power failure.
class FileSync {
 public:
  /// `file` is borrowed until finish() or the end of this object.
  explicit FileSync(int file);
  FileSync(const FileSync&) = delete;
  FileSync& operator=(const FileSync&) = delete;
  ~FileSync();

  /// Readable when finish() will not wait.
  [[nodiscard]] int descriptor() const { return done_.get(); }
  Result<void> finish();

 private:
  UniqueFd done_;
  int error_ = 0;
  std::thread thread_;
};

}  // namespace spc
