#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A program of the site's, to be run as the calling user.
struct HookProcess {
  std::string program;
  std::vector<std::string> arguments;    ///< argv, the program's name first
  std::vector<std::string> environment;  ///< all of it: NAME=VALUE
  std::string input;                     ///< what it reads on standard input
  std::chrono::seconds limit{30};
  int descriptor = -1;  ///< of the program, where its path means nothing: inside a container
};

struct HookProcessEnd {
  enum class Kind { exited, signalled, timed_out, printed_too_much, not_executed };
  Kind kind{};
  int number = 0;      ///< exit status, signal, or errno
  std::string output;  ///< what it printed on standard output

  [[nodiscard]] bool good() const { return kind == Kind::exited && number == 0; }
};

/// The most that a hook may print on standard output, in bytes.
inline constexpr std::size_t kMostHookOutput = 1 << 20;

/// Executes it in a session of its own with / as its work directory, descriptors 0 to 2 and nothing else (but its own file at 3
/// if it is executed by descriptor), no capability and no way to get one. Lines of standard error are given to `tell`, at most
/// 200 of 1,000 bytes. It is killed with its process group when the time is up, when it prints too much, or when the calling
/// process is; what it leaves in its process group when it ends is killed, too. The caller must be single-threaded.
Result<HookProcessEnd> run_hook_process(const HookProcess& process, const std::function<void(std::string_view)>& tell);

/// "ended with status 3, and printed last ..." and the like. `last_line`: of standard error, may be empty.
Error failure_of(const HookProcess& process, const HookProcessEnd& end, std::string_view last_lines);

}  // namespace spc
