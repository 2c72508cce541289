#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/process/child.hpp"

namespace spc {

/// What a program may take of time and print. Its end counts, not that of its output: what it
/// leaves in the background may keep that open for ever.
struct RunLimits {
  std::chrono::milliseconds time;
  std::size_t output;       ///< bytes on its standard output
  int lines = 200;          ///< on its standard error; further ones are not shown
  std::size_t line = 1000;  ///< bytes of each; the rest is left out
  enum class Group { killed, left };
  Group group = Group::killed;  ///< what becomes of its group when it has ended by itself
};

struct RunEnd {
  enum class Kind { exited, signalled, timed_out, printed_too_much };
  Kind kind = Kind::exited;
  int number = 0;      ///< the exit status or the signal
  std::string output;  ///< what was read of it, never copied on the way
};

/// Runs a program to its end, in a group of its own: `input` is what it reads on 0, 1 is returned,
/// `tell` is called with each line of 2. An Error: it was not executed.
Result<RunEnd> run_supervised(Program program, std::string_view input, const RunLimits& limits,
                              const std::function<void(std::string_view line)>& tell);

}  // namespace spc
