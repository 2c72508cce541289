#pragma once

#include <string_view>

namespace spc {

/// A notice is what each node says, not only the first. A record is for the administrator, not for the user.
enum class LogLevel { debug, info, warning, notice, record };

/// Where a module tells of progress and decisions. Errors are returned, not logged.
class Log {
 public:
  virtual ~Log() = default;
  /// One line without a line end; never throws.
  virtual void write(LogLevel level, std::string_view line) noexcept = 0;
};

/// Writes every line to stderr.
class StderrLog final : public Log {
 public:
  void write(LogLevel level, std::string_view line) noexcept override;
};

}  // namespace spc
