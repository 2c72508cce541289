#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A helper process. It ends with this object and with this process.
class HelperProgram {
 public:
  enum class Environment { empty, ours };

  /// `descriptors[i]` becomes descriptor 3+i of the program; 0 and 1 are /dev/null, 2 is ours; there are no others.
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
  /// Becomes readable when the program has exited.
  [[nodiscard]] int watch() const { return watch_.get(); }
  /// Waits for its exit; 128 plus the signal number if it was killed.
  int wait();
  void kill();
  /// From now on it ends independently.
  void leave_alone() { pid_ = -1; }

 private:
  pid_t pid_ = -1;
  UniqueFd watch_;
};

}  // namespace spc
