#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// Where the entrypoint's process has the probe and the file that the probe writes to.
inline constexpr int kProbeDescriptor = 20;
inline constexpr int kFoundDescriptor = 21;

struct EntrypointProcess {
  std::string program;
  std::vector<std::string> arguments;    ///< argv, the program's name first
  std::vector<std::string> environment;  ///< NAME=VALUE
  int probe = -1;
  int found = -1;
  std::chrono::seconds limit{0};  ///< 0: none
};

struct EntrypointEnd {
  enum class Kind { exited, signalled, timed_out, not_executed };
  Kind kind{};
  int number = 0;  ///< exit status, signal, or errno
};

/// Executes it in a session of its own, standard input empty, nothing of the calling process open, and gives every line that it
/// prints to `tell`. Returns when its first process has ended. Then
///  - what it has started lives on if that was a success: entrypoints start servers. What those print is thrown away;
///  - nothing of it lives on if it was none, if the time was up, or if the calling process is killed.
/// A fork of the calling process, which must be single-threaded, sees to that; it is nobody's child when this returns.
Result<EntrypointEnd> run_process(const EntrypointProcess& process, const std::function<void(std::string_view)>& tell);

}  // namespace spc
