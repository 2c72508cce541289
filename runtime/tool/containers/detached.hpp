#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::tool {

// --- supervise ---

/// Exit statuses as in podman; all others are the command's own.
inline constexpr int kNoContainer = 125;    ///< the container could not be set up
inline constexpr int kCannotExecute = 126;  ///< the command cannot be executed
inline constexpr int kNoCommand = 127;      ///< command not found

/// Runs `child` in a separate process and passes on signals. Returns its exit status, or 128 plus
/// the number of the signal that killed it. The child is killed when this process ends. `started`
/// receives its PID.
Result<int> supervise(const std::function<int()>& child, const std::function<void(pid_t)>& started);

/// Executes the first of `alternatives` that exists. Each is a command with its arguments, searched
/// in PATH of `environment`. Returns only on failure, with an exit status, after reporting the
/// reason. `image`: its name in the report.
int execute(const std::vector<std::vector<std::string>>& alternatives,
            const std::map<std::string, std::string>& environment, std::string_view image);

// --- detached ---

/// The background process of `run --detach`. Until its command has begun, it reports failures to
/// the waiting foreground process.
class Detached {
 public:
  /// Releases the foreground process: the command begins in a child, whose start is awaited
  /// instead.
  void let_go();
  /// In the child that becomes the command, just before the execution: redirects output to the
  /// file. The execution closes the pipe to the foreground process.
  void take_output() const;
  /// Reports to the foreground process that the command has not begun.
  void failed() const;

  /// Runs `body` in a background process and waits until the command has begun. Returns 0 or the
  /// exit status of the failure. `output`: path of the file for the command's output.
  static Result<int> run(const std::string& output, const std::function<int(Detached&)>& body);

 private:
  UniqueFd line_;
  UniqueFd output_;
};

}  // namespace spc::tool
