#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

/// An amount of memory as people write it: bytes, with K, M, G or T behind them, or N% of what the job may use.
struct MemorySize {
  std::uint64_t bytes = 0;
  std::uint32_t percent = 0;  ///< 1 to 100; 0: `bytes` counts

  /// The Error says what is wrong with the text, which it quotes.
  static Result<MemorySize> parse(std::string_view text);
  bool operator==(const MemorySize&) const = default;
};

/// How much memory the calling task may use, in bytes: the limit of its cgroups, else what the job asked for, else all that
/// the machine has.
std::uint64_t memory_of_job(const std::map<std::string, std::string>& job_environment);

/// In bytes of a job that may use `memory`, at least a page. Refused if it is more than `most`, in the form of MemorySize;
/// empty: there is no such limit.
Result<std::uint64_t> bytes_of(const MemorySize& size, std::uint64_t memory, const std::string& most);

/// The same for the calling task and by the site's max_tmpfs_size.
Result<std::uint64_t> tmpfs_bytes(const MemorySize& size, const std::map<std::string, std::string>& job_environment);

}  // namespace spc
