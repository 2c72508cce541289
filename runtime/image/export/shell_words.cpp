#include "image/export/shell_words.hpp"

namespace spc {

std::string shell_word(const std::string& word) {
  std::string out = "'";
  for (const char c : word) c == '\'' ? out.append("'\\''") : out.append(1, c);
  return out + "'";
}

std::string shell_words(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += " " + shell_word(word);
  return out;
}

}  // namespace spc
