#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// The probe, and the file that it writes to.
inline constexpr int kProbeDescriptor = 20;
inline constexpr int kFoundDescriptor = 21;

struct EntrypointProcess {
  std::string program;
  std::vector<std::string> arguments;    ///< argv, starting with the program's name
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

/// Executes it in a session of its own, with empty standard input and no descriptor of the calling
/// process, and passes every line of output to `tell`. Returns when its first process has exited.
/// Then
///  - on success, processes it started live on, since entrypoints start servers; their output is
///  discarded;
///  - on failure, at the time limit, or if the calling process is killed, all of them are killed.
/// A fork of the calling process, which must be single-threaded, supervises it; when this returns,
/// it is no longer its child.
Result<EntrypointEnd> run_process(const EntrypointProcess& process,
                                  const std::function<void(std::string_view)>& tell);

}  // namespace spc
