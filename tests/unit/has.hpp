#pragma once

#include <string>
#include <vector>

#include "unit/catch.hpp"

/// Whether the text has this part; a failed check shows the text.
inline bool has(const std::string& text, const std::string& part) {
  UNSCOPED_INFO(text);
  return text.find(part) != std::string::npos;
}

/// Whether one of the texts has it.
inline bool has(const std::vector<std::string>& texts, const std::string& part) {
  for (const auto& text : texts) {
    if (has(text, part)) return true;
  }
  return false;
}
