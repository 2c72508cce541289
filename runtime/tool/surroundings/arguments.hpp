#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace spc::tool {

/// Command line after a command's name.
struct Arguments {
  std::map<std::string, std::vector<std::string>, std::less<>>
      options;                     ///< by long name, without dashes
  std::vector<std::string> words;  ///< not options
  std::vector<std::string> rest;   ///< as given, for a command to run

  [[nodiscard]] bool has(std::string_view option) const {
    return options.find(option) != options.end();
  }
  /// The last one given; empty if none.
  [[nodiscard]] std::string value(std::string_view option) const {
    const auto found = options.find(option);
    return found == options.end() || found->second.empty() ? std::string() : found->second.back();
  }
  [[nodiscard]] std::vector<std::string> values(std::string_view option) const {
    const auto found = options.find(option);
    return found == options.end() ? std::vector<std::string>() : found->second;
  }
};

}  // namespace spc::tool
