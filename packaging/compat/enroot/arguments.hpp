#pragma once

#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// An option of enroot's: `-o FILE`, `--output FILE`, `--output=FILE`.
struct EnrootOption {
  char letter;  ///< 0: it has none
  const char* name;
  bool takes_value;
};

/// What stands behind a command: options first, then words.
struct EnrootArguments {
  std::map<std::string, std::vector<std::string>, std::less<>> options;  ///< by long name
  std::vector<std::string> words;

  [[nodiscard]] bool has(std::string_view option) const { return options.find(option) != options.end(); }
  /// The last one given; empty if there is none.
  [[nodiscard]] std::string value(std::string_view option) const;
  [[nodiscard]] std::vector<std::string> values(std::string_view option) const;
};

/// Options end at the first word or at `--`, as enroot's do. The error says which option is none of `known`.
Result<EnrootArguments> parse_arguments(std::span<const std::string> words, std::initializer_list<EnrootOption> known);

}  // namespace spc
