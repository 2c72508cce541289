#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/process/child.hpp"
#include "base/result.hpp"

namespace spc::tool {

/// A helper process. It ends with this object and with this process.
class HelperProgram {
 public:
  enum class Environment { empty, ours };

  /// `descriptors[i]` becomes descriptor 3+i of the program; 0 and 1 are /dev/null, 2 is ours;
  /// there are no others.
  static Result<HelperProgram> start(const std::string& path,
                                     const std::vector<std::string>& arguments,
                                     const std::vector<int>& descriptors, Environment environment);

  HelperProgram() = default;

  [[nodiscard]] bool running() const { return child_.running(); }
  /// Becomes readable when the program has ended.
  [[nodiscard]] int watch() const { return child_.watch(); }
  /// Waits for its end; 128 and the signal's number for one that was killed.
  int wait() { return wait_status().code(); }
  ExitStatus wait_status() { return child_.wait(); }
  void kill() { child_.kill(); }
  /// From now on it ends by itself.
  void leave_alone() { child_.release(); }

 private:
  explicit HelperProgram(Child child) : child_(std::move(child)) {}
  Child child_;
};

}  // namespace spc::tool
