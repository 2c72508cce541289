#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// One `key = value` of a TOML file.
struct PlainEntry {
  enum class Kind { text, list, word };

  std::vector<std::string> table;  ///< names in `[a."b"]` above it; empty: none
  std::string key;
  Kind kind = Kind::word;
  std::vector<std::string>
      texts;  ///< the text, the texts of a list, or a word as it is written: true, 17
};

/// The entries of a TOML file as nearly all are: tables, texts without escapes, lists of texts,
/// numbers, true and false. Empty if the file has anything else, valid or not. For srun, which
/// cannot afford toml11. What is valid is decided in image/config.
std::optional<std::vector<PlainEntry>> read_plain_toml(std::string_view text);

}  // namespace spc
