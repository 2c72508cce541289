#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "tool/metrics/log_records.hpp"

namespace spc::tool {

/// What `kind=` of a failure record can be.
inline constexpr std::array kFailureKinds = {"invalid",  "not_found", "refused", "unavailable",
                                             "no_space", "corrupt",   "system",  "internal"};

/// What the records in slurmd's log add up to.
class LogCounts {
 public:
  void add(const LogRecord& record);
  /// The samples of these metrics, a line each.
  [[nodiscard]] std::string samples() const;

 private:
  std::uint64_t starts_ = 0, by_fuse_ = 0, pulls_ = 0;
  std::array<std::uint64_t, kStartPhases.size()> tenths_{};  ///< of milliseconds
  std::array<std::uint64_t, kFailureKinds.size()> failures_{};
};

/// Counts the records in a file, as for_each_log_line reads it.
Result<LogCounts> count_log(const std::string& path);

}  // namespace spc::tool
