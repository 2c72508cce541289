#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/failure.hpp"

namespace spc {

/// A known failure found in a text.
struct Recognised {
  const Failure* failure = nullptr;
  std::uint64_t line = 0;   ///< first occurrence, from 1
  std::uint64_t times = 0;  ///< number of lines with it
  std::string text;         ///< excerpt of the first such line, printable, at most 300 bytes
  std::string task;  ///< of the first such line, if labelled by `srun --label`; otherwise empty
  bool consequence = false;  ///< caused by another failure that was found
};

/// Reads the output of a job and collects the known failures in it. Accepts pieces of any size and
/// buffers at most 8 KiB of a line: longer lines are searched in parts, which overlap by 1 KiB.
class Diagnosis {
 public:
  Diagnosis();
  void read(std::string_view piece);
  /// Causes in order of first occurrence, then their consequences.
  [[nodiscard]] std::vector<Recognised> findings();
  [[nodiscard]] std::uint64_t lines() const { return lines_; }

 private:
  struct Seen {
    Recognised what;
    std::uint64_t last_line = 0;
  };
  void examine(std::string_view text);

  std::string line_;
  std::string task_;  // of the current line, once it is `labelled_`
  bool labelled_ = false;
  bool line_begins_ = true;
  std::uint64_t lines_ = 0;  // started so far
  std::vector<Seen> seen_;   // parallel to known_failures()
};

std::vector<Recognised> diagnose(std::string_view text);

}  // namespace spc
