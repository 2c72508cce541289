#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "unit/test.hpp"

/// Whether the text has a part: a failed check shows the text.
struct TextHas {
  std::string text;
  bool found = false;

  operator bool() const {
    return found;
  }  // NOLINT(google-explicit-constructor): it stands for the answer
  friend std::ostream& operator<<(std::ostream& out, const TextHas& it) { return out << it.text; }
};

inline TextHas has(const std::string& text, const std::string& part) {
  return {text, text.find(part) != std::string::npos};
}

/// Whether one of the texts has it.
inline TextHas has(const std::vector<std::string>& texts, const std::string& part) {
  TextHas all;
  for (const auto& text : texts) {
    all.text += text + "\n";
    all.found = all.found || text.find(part) != std::string::npos;
  }
  return all;
}
