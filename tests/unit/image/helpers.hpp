#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "unit/has.hpp"

namespace spc::test {

inline Digest digest_of(char c) { return Digest::parse("sha256:" + std::string(64, c)).value(); }

inline const std::string kHex(64, 'a');

/// Returns whether it is an error with this reason, in one line without control characters.
template <typename Value>
bool refused(const Result<Value>& result, const std::string& reason) {
  if (result) return false;
  const std::string message = result.error().message();
  CHECK(has(message, reason));
  CHECK_FALSE(has(message, "\n"));
  CHECK_FALSE(has(message, "\x1b"));
  return true;
}

struct Lines final : Log {
  void write(LogLevel, std::string_view line) noexcept override { all.emplace_back(line); }
  std::vector<std::string> all;
};

}  // namespace spc::test
