#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "base/result.hpp"

// FUZZ_TARGET(NAME) { ... return 0; } checks properties of any `size` bytes at `data`. With
// libFuzzer each target is a program. Without it, one program replays inputs of all targets.
#ifdef SPC_REPLAY
#define FUZZ_TARGET(name)                                             \
  static int fuzz_##name(const std::uint8_t* data, std::size_t size); \
  [[maybe_unused]] static const bool known_##name =                   \
      spc::fuzz::targets().emplace(#name, fuzz_##name).second;        \
  static int fuzz_##name(const std::uint8_t* data, std::size_t size)
#else
#define FUZZ_TARGET(name) \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
#endif

namespace spc::fuzz {

using Target = int (*)(const std::uint8_t* data, std::size_t size);

inline std::map<std::string, Target>& targets() {
  static std::map<std::string, Target> all;
  return all;
}

/// Checks a property that must hold for any input. A violation crashes, which fuzzers detect.
inline void must(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", property);
  std::abort();
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

/// Checks a property of every message: one line of bounded length that is safe for a terminal.
inline void must_be_readable(const Error& error) {
  const std::string message = error.message();
  must(!message.empty() && is_printable(message), "a message is one line of printable text");
  must(message.size() < 4096, "a message is short");
}

}  // namespace spc::fuzz
