#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc::tool {

/// The `KEY_ms=` of a start record, in its order.
inline constexpr const char* kStartPhases[] = {"import", "sources", "layers", "overlay", "pivot", "root", "start"};
/// What `kind=` of a failure record can be.
inline constexpr const char* kFailureKinds[] = {"invalid",     "not_found", "refused", "unavailable",
                                                "no_space", "corrupt",   "system",  "internal"};

/// What the records in slurmd's log (launch/inside/start_record.hpp) add up to.
class LogCounts {
 public:
  /// A line without its end. Anything but a whole record counts for nothing.
  void line(std::string_view text);
  /// The samples of these metrics, a line each.
  [[nodiscard]] std::string samples() const;

 private:
  bool start(std::string_view record, std::string_view job);
  bool failure(std::string_view record, std::string_view job);

  std::uint64_t starts_ = 0, by_fuse_ = 0, pulls_ = 0;
  std::array<std::uint64_t, std::size(kStartPhases)> tenths_{};  ///< of milliseconds
  std::array<std::uint64_t, std::size(kFailureKinds)> failures_{};
};

/// Counts in a regular file; of one larger than 1 GiB only in the first.
Result<LogCounts> count_log(const std::string& path);

}  // namespace spc::tool
