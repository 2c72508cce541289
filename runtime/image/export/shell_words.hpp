#pragma once

#include <string>
#include <vector>

namespace spc {

/// The word as a shell reads it again, in single quotes.
std::string shell_word(const std::string& word);
/// The same of several, with a space before each.
std::string shell_words(const std::vector<std::string>& words);

}  // namespace spc
