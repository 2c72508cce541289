#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

/// An amount of memory: bytes with suffix K, M, G or T, or N% of the job's memory.
struct MemorySize {
  std::uint64_t bytes = 0;
  std::uint32_t percent = 0;  ///< 1 to 100; 0: see `bytes`

  /// Parses a size. The Error quotes the text and states the reason.
  static Result<MemorySize> parse(std::string_view text);
  bool operator==(const MemorySize&) const = default;
};

/// Returns the bytes of memory available to the calling task: the limit of its cgroups, or the
/// job's request, or all of the node's memory.
std::uint64_t memory_of_job(const std::map<std::string, std::string>& job_environment);

/// Converts `size` to bytes for a job with `memory`, at least one page. Returns an Error if it
/// exceeds `most`, written like a MemorySize; empty: no limit.
Result<std::uint64_t> bytes_of(const MemorySize& size, std::uint64_t memory,
                               const std::string& most);

}  // namespace spc
