#pragma once

#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>

namespace spc {

/// Returns a number of bytes for users: `1.4 GB`, `482 MB`, `23 kB`.
inline std::string human_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  char text[40];
  std::snprintf(text, sizeof text, unit > 0 && value < 9.95 ? "%.1f %s" : "%.0f %s", value,
                kUnits[unit]);
  return text;
}

/// Returns `0 of 23 kB`, `120 of 482 MB`: a part of a number of bytes, in the whole's unit.
inline std::string part_of_bytes(std::uint64_t part, std::uint64_t whole) {
  const std::string text = human_bytes(whole);
  const auto unit = text.substr(text.find(' ') + 1);
  double value = static_cast<double>(part);
  for (const char* one : {"B", "kB", "MB", "GB", "TB", "PB"}) {
    if (unit == one) break;
    value /= 1000;
  }
  char number[40];
  const bool is_short = text.find('.') != std::string::npos && value >= 0.05;
  std::snprintf(number, sizeof number, is_short ? "%.1f of " : "%.0f of ", value);
  return number + text;
}

}  // namespace spc
