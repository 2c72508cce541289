#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/registry/secret.hpp"

namespace spc {

struct CommandOutput {
  int status = 0;          ///< exit status; 128 + signal when it was killed
  SecretText out;          ///< standard output
  std::string complaints;  ///< the end of standard error on one line, printable, at most 200 characters
};

/// Runs a program of the user as the user, without a shell: `command[0]` is looked for along PATH unless it has a slash.
/// It gets `input`, the environment, no other descriptor and a process group of its own, which is killed when it takes
/// longer than `limit` or writes more than 64 KiB; both are errors, as is a program that cannot be started.
Result<CommandOutput> run_command(const std::vector<std::string>& command, std::string_view input,
                                  std::chrono::seconds limit = std::chrono::seconds(30));

}  // namespace spc
