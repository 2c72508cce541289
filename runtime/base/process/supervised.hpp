#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/process/child.hpp"

namespace spc {

// --- supervised ---

/// Limits of a program's time and output. The run ends with the program, not with its output:
/// background processes may keep the output open forever.
struct RunLimits {
  std::chrono::milliseconds time;  ///< 0: none
  std::size_t output = 0;          ///< bytes on its standard output
  int lines = 200;                 ///< lines of its standard error; further ones are not shown
  std::size_t line = 1000;         ///< bytes of each line
  bool splits = false;             ///< longer lines become several; otherwise the rest is left out
  enum class Group { killed, left };
  Group group = Group::killed;  ///< whether its process group is killed after a normal end
};

/// The end of a program. If it could not be executed, run_supervised() returns an Error instead.
struct ProcessEnd {
  enum class Kind { exited, signalled, timed_out, printed_too_much };
  Kind kind = Kind::exited;
  int number = 0;      ///< the exit status or the signal
  std::string output;  ///< its standard output, never copied on the way

  [[nodiscard]] bool good() const { return kind == Kind::exited && number == 0; }
  /// Returns "exited with status 3; last output: ..." and so on. `last_lines`: may be empty.
  [[nodiscard]] std::string reason(const RunLimits& limits, std::string_view last_lines) const;
};

using TellLine = std::function<void(std::string_view line)>;

/// Runs a program to its end, in a group of its own, with `input` as its standard input. Returns
/// its standard output, and calls `tell` with each line of its standard error. Returns an Error
/// with errno if it was not executed.
Result<ProcessEnd> run_supervised(Program program, std::string_view input, const RunLimits& limits,
                                  const TellLine& tell);

/// Descriptors to poll while a program runs.
struct PolledBeside {
  std::function<void(std::vector<pollfd>&)> add;  ///< called before each poll
  /// Called after each poll with the added descriptors. Returns false to kill the program: its end
  /// is then `signalled`.
  std::function<bool(std::span<const pollfd>)> ready;
};

/// Does the same with a child that was started with a group of its own and writes to these pipes.
/// The pipes remain open unless all writers have closed them. `output` may be empty.
ProcessEnd supervise(Child& child, UniqueFd& output, UniqueFd& lines, const RunLimits& limits,
                     const TellLine& tell, const PolledBeside& beside = {});

// --- bounded work ---

/// Runs `work` in a child process and returns its result. Empty if it has no result by `end` or
/// dies. A hanging file system blocks the child, not the caller.
std::optional<std::string> answer_before(std::chrono::steady_clock::time_point end,
                                         const std::function<std::string()>& work);

// --- descendants ---

/// Kills the process group `first` (not above 0: none) and all children of the calling process
/// until there are none. The caller must be a subreaper (PR_SET_CHILD_SUBREAPER), so that orphaned
/// grandchildren become its children. Gives up after 5 seconds.
void end_descendants(pid_t first);

}  // namespace spc
