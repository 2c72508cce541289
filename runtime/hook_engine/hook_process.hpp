#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A site program, to run as the calling user.
struct HookProcess {
  std::string program;
  std::vector<std::string> arguments;    ///< argv, starting with the program's name
  std::vector<std::string> environment;  ///< complete: NAME=VALUE
  std::string input;                     ///< its standard input
  std::chrono::seconds limit{30};
  int descriptor = -1;  ///< of the program, if its path is not reachable: in a container
};

struct HookProcessEnd {
  enum class Kind { exited, signalled, timed_out, printed_too_much, not_executed };
  Kind kind{};
  int number = 0;      ///< exit status, signal, or errno
  std::string output;  ///< its standard output

  [[nodiscard]] bool good() const { return kind == Kind::exited && number == 0; }
};

/// Limit of a hook's standard output in bytes.
inline constexpr std::size_t kMostHookOutput = 1 << 20;

/// Executes it in a session of its own with / as work directory, descriptors 0 to 2 and no others
/// (but its own file at 3 if it is executed by descriptor), without capabilities and with
/// no_new_privs. Lines of standard error are passed to `tell`, at most 200 of 1,000 bytes. Its
/// process group is killed at the time limit, at the output limit, or with the calling process;
/// processes that remain in the group when it exits are killed, too. The caller must be
/// single-threaded.
Result<HookProcessEnd> run_hook_process(const HookProcess& process,
                                        const std::function<void(std::string_view)>& tell);

/// "exited with status 3; last output: ..." and so on. `last_line`: of standard error, may be
/// empty.
Error failure_of(const HookProcess& process, const HookProcessEnd& end,
                 std::string_view last_lines);

}  // namespace spc
