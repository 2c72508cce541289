#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/failure.hpp"

namespace spc {

/// A failure that a text names.
struct Recognised {
  const Failure* failure = nullptr;
  std::uint64_t line = 0;    ///< of the first time, from 1
  std::uint64_t times = 0;   ///< on how many lines
  std::string text;          ///< of the first such line what is around the words, printable, at most 300 bytes
  std::string task;          ///< whose line it was, if `srun --label` says; empty otherwise
  bool consequence = false;  ///< another one that was found brings it about
};

/// Reads what a job wrote and notes the failures that it names. Takes pieces of any size and holds no more than a line of
/// 8 KiB: of a longer one each part is looked at, and a failure's words must stand within 1 KiB where it is cut.
class Diagnosis {
 public:
  Diagnosis();
  void read(std::string_view piece);
  /// Causes in the order in which they were first seen, then their consequences.
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
  std::uint64_t lines_ = 0;  // that have begun
  std::vector<Seen> seen_;   // as known_failures()
};

std::vector<Recognised> diagnose(std::string_view text);

}  // namespace spc
