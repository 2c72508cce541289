#include "oci_hint.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>

namespace spank_container {

std::string oci_option_in(const std::string& command_line) {
  constexpr std::string_view kOption = "--container";
  std::string_view rest = command_line;
  bool is_value = true;  // the program's name
  bool is_ours = false;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    if (is_ours) return std::string(word);
    // What follows an option without "=" may be its value or already the command; two words without
    // a dash are the command.
    if (!word.starts_with('-') && !is_value) return {};
    if (word == "--") return {};
    is_value = word.starts_with('-') && word.find('=') == std::string_view::npos;
    is_ours = word == kOption;
    if (word.starts_with(kOption) && word.substr(kOption.size()).starts_with('=')) {
      return std::string(word.substr(kOption.size() + 1));
    }
  }
  return {};
}

std::string hint_about_oci_option() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string value = oci_option_in(std::string(std::istreambuf_iterator<char>(file), {}));
  const char* variable = ::getenv("SLURM_CONTAINER");
  if (value.empty() && variable != nullptr) value = variable;
  if (value.empty() || ::access((value + "/config.json").c_str(), F_OK) == 0) return {};
  std::string shown;
  for (const char c : value.substr(0, 200)) shown += c > 0x20 && c < 0x7f && c != '"' ? c : '?';
  return "warning: --container=" + shown +
         " is Slurm's option for OCI bundles, and this is not one (hint: did you mean "
         "--container-image=" +
         shown + "?)";
}

}  // namespace spank_container
