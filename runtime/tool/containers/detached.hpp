#pragma once

#include <functional>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::tool {

/// The side of `run --detach` that stays: from its start until its command has begun, who waits for
/// it hears what goes wrong.
class Detached {
 public:
  /// Its command begins in a child: that is waited for, and not we.
  void let_go();
  /// In the child that becomes the command, just before: output goes to the file. The line ends
  /// with the execution.
  void take_output() const;
  /// The command has not begun.
  void failed() const;

  /// Runs `body` in a process of its own, in the background, and waits until the command has begun:
  /// 0, or the status of the failure. `output`: the path of the file for what the command says.
  static Result<int> run(const std::string& output, const std::function<int(Detached&)>& body);

 private:
  UniqueFd line_;
  UniqueFd output_;
};

}  // namespace spc::tool
