#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc::tool {

/// The `KEY_ms=` of a start record, in its order.
inline constexpr std::array kStartPhases = {"import", "sources", "layers", "overlay",
                                            "pivot",  "root",    "start"};

/// The numbers of a pull record, in its order; then come its milliseconds.
inline constexpr std::array kPullNumbers = {"nodes",      "index",          "layers",
                                            "converted",  "registry_bytes", "mirror_bytes",
                                            "node_bytes", "shared_bytes"};

/// What a line of slurmd's log says of a start (launch/inside/start_record.hpp), of one that
/// failed, or of what a node pulled. Texts are parts of the line.
struct LogRecord {
  enum class Event { start, failed, pull } event = Event::start;
  std::string_view time;  ///< as slurmd wrote it
  std::string_view job, step, node;
  std::string_view image;  ///< as it stands in its quotes
  std::string_view kind;   ///< of a failure
  std::array<std::uint64_t, kPullNumbers.size()>
      pull{};  ///< of a pull, with digest and tenths[0]; a start has all that follows
  std::uint64_t uid = 0;
  std::string_view user, digest, from;
  std::uint64_t layers = 0, shared = 0, by_fuse = 0;
  bool pulled = false;
  std::array<std::uint64_t, kStartPhases.size()> tenths{};  ///< of milliseconds
};

/// Of a line without its end. Nothing unless it is, as a whole, a record: texts of users stay in
/// their quotes.
std::optional<LogRecord> read_log_record(std::string_view line);

/// Each line of a regular file that has an end and at most 4 KiB; of a file larger than 1 GiB only
/// those in the first.
Result<void> for_each_log_line(const std::string& path,
                               const std::function<void(std::string_view)>& use);

}  // namespace spc::tool
