#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <string_view>

namespace spc {

/// Levels of a line. A notice has the same text on each node. A record is for the administrator,
/// not for the user.
enum class LogLevel { debug, info, warning, notice, record };

/// Receives a module's progress and decisions. Errors are returned, not logged.
class Log {
 public:
  virtual ~Log() = default;
  /// Writes one line without newline; never throws.
  virtual void write(LogLevel level, std::string_view line) noexcept = 0;
};

/// Writes every line to stderr.
class StderrLog final : public Log {
 public:
  void write(LogLevel level, std::string_view line) noexcept override {
    if (level == LogLevel::debug) return;
    const std::string_view prefix = level == LogLevel::warning ? "warning: " : "";
    // One writev keeps lines of several processes separate.
    const iovec parts[] = {{const_cast<char*>(prefix.data()), prefix.size()},
                           {const_cast<char*>(line.data()), line.size()},
                           {const_cast<char*>("\n"), 1}};
    [[maybe_unused]] const auto written = ::writev(STDERR_FILENO, parts, 3);
  }
};

}  // namespace spc
