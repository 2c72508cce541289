#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/registry/secret.hpp"

namespace spc {

struct CommandOutput {
  int status = 0;  ///< exit status; 128 + signal if it was killed
  SecretText out;  ///< standard output
  std::string
      complaints;  ///< the end of standard error as one line, printable, at most 200 characters

  /// For messages: its exit status and what it complained about.
  [[nodiscard]] std::string ending() const;
};

/// Runs a program as the user, without a shell: `command[0]` is searched in PATH unless it has a
/// slash. It gets `input`, the environment, no other descriptor and its own process group, which is
/// killed if it exceeds `limit` or writes more than 64 KiB; both are errors, as is a program that
/// cannot be started.
Result<CommandOutput> run_command(const std::vector<std::string>& command, std::string_view input,
                                  std::chrono::seconds limit = std::chrono::seconds(30));

}  // namespace spc
