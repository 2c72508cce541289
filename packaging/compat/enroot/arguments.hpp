#pragma once

#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc::enroot {

/// An option of enroot: `-o FILE`, `--output FILE`, `--output=FILE`.
struct EnrootOption {
  char letter;  ///< 0: none
  const char* name;
  bool takes_value;
};

/// Command line after a command: options first, then words.
struct EnrootArguments {
  std::map<std::string, std::vector<std::string>, std::less<>> options;  ///< by long name
  std::vector<std::string> words;

  [[nodiscard]] bool has(std::string_view option) const {
    return options.find(option) != options.end();
  }
  /// The last one given; empty if none.
  [[nodiscard]] std::string value(std::string_view option) const;
  [[nodiscard]] std::vector<std::string> values(std::string_view option) const;
};

/// Options end at the first word or at `--`, as in enroot. The error names the option that is not
/// in `known`.
Result<EnrootArguments> parse_arguments(std::span<const std::string> words,
                                        std::initializer_list<EnrootOption> known);

}  // namespace spc::enroot
