#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A program that works for us. It ends when this object goes, and with this process.
class HelperProgram {
 public:
  enum class Environment { empty, ours };

  /// `descriptors[i]` becomes descriptor 3+i of the program; it gets no other but 0 and 1 on /dev/null and our 2.
  static Result<HelperProgram> start(const std::string& path, const std::vector<std::string>& arguments,
                                     const std::vector<int>& descriptors, Environment environment);

  HelperProgram() = default;
  HelperProgram(HelperProgram&& other) noexcept : pid_(std::exchange(other.pid_, -1)), watch_(std::move(other.watch_)) {}
  HelperProgram& operator=(HelperProgram&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(watch_, other.watch_);
    return *this;
  }
  ~HelperProgram() { kill(); }

  [[nodiscard]] bool running() const { return pid_ > 0; }
  /// Becomes readable when the program has ended.
  [[nodiscard]] int watch() const { return watch_.get(); }
  /// Waits for its end; 128 and the signal's number for one that was killed.
  int wait();
  void kill();
  /// From now on it ends by itself.
  void leave_alone() { pid_ = -1; }

 private:
  pid_t pid_ = -1;
  UniqueFd watch_;
};

}  // namespace spc
