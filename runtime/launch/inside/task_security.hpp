#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launch/request/launch_request.hpp"

namespace spc {

/// What narrows every task of a container, decided when it starts. Part of the notes for its tasks.
struct TaskSecurity {
  std::string asked;                  ///< LaunchRequest::seccomp of the step that started it
  std::vector<std::string> programs;  ///< of seccomp, in the kernel's form: all of them count
  std::string apparmor,
      selinux;  ///< labels of the site; empty: none, or the node does not have that module

  /// Records `key=value\0`; other keys count for nothing.
  [[nodiscard]] std::string serialize() const;
  static TaskSecurity parse(std::string_view records);

  /// A task that joins asks for what it gets anyway, or is refused.
  [[nodiscard]] Result<void> check(const LaunchRequest& request) const;
  /// In the task, without privilege, before anything of the image runs.
  [[nodiscard]] Result<void> apply() const;
};

}  // namespace spc
