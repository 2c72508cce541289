#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "unit/catch2_compat.hpp"

/// Whether a string contains a part. A failed check prints the string.
struct TextHas {
  std::string text;
  bool found = false;

  operator bool() const {
    return found;
  }  // NOLINT(google-explicit-constructor): represents the result
  friend std::ostream& operator<<(std::ostream& out, const TextHas& it) { return out << it.text; }
};

inline TextHas has(const std::string& text, const std::string& part) {
  return {text, text.find(part) != std::string::npos};
}

/// Returns whether one of the strings contains `part`.
inline TextHas has(const std::vector<std::string>& texts, const std::string& part) {
  TextHas all;
  for (const auto& text : texts) {
    all.text += text + "\n";
    all.found = all.found || text.find(part) != std::string::npos;
  }
  return all;
}
