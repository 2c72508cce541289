#pragma once

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
  void write(LogLevel level, std::string_view line) noexcept override;
};

}  // namespace spc
