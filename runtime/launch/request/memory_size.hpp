#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

/// An amount of memory as text: bytes with suffix K, M, G or T, or N% of the job's memory.
struct MemorySize {
  std::uint64_t bytes = 0;
  std::uint32_t percent = 0;  ///< 1 to 100; 0: see `bytes`

  /// The Error quotes the text and gives the reason.
  static Result<MemorySize> parse(std::string_view text);
  bool operator==(const MemorySize&) const = default;
};

/// Memory available to the calling task in bytes: the limit of its cgroups, or the job's request,
/// or all of the node's.
std::uint64_t memory_of_job(const std::map<std::string, std::string>& job_environment);

/// In bytes for a job with `memory`, at least a page. Refused if it exceeds `most`, written like a
/// MemorySize; empty: no limit.
Result<std::uint64_t> bytes_of(const MemorySize& size, std::uint64_t memory,
                               const std::string& most);

}  // namespace spc
