#include "options.hpp"

#include <vector>

namespace spank_container {
namespace {

std::vector<spc_option> options_of_library() {
  std::vector<spc_option> options;
  spc_option option{};
  option.size = sizeof option;
  while (spc_option_at(options.size(), &option) == SPC_OK) options.push_back(option);
  return options;
}

}  // namespace

std::span<const spc_option> option_table() {
  static const std::vector<spc_option> options = options_of_library();
  return options;
}

}  // namespace spank_container
