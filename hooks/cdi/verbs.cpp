#include "hooks/cdi/verbs.hpp"

#include <algorithm>

namespace spc {

std::vector<std::string> CdiVerb::values_of(std::string_view option) const {
  std::vector<std::string> values;
  for (const auto& [given, value] : options) {
    if (given == option) values.push_back(value);
  }
  return values;
}

std::optional<CdiVerb> verb_of(const CdiHook& hook) {
  const std::string program = hook.path.substr(hook.path.rfind('/') + 1);
  std::size_t verb = 1;
  if (program == "nvidia-ctk") {
    if (hook.args.size() < 2 || hook.args[1] != "hook") return std::nullopt;
    verb = 2;
  } else if (program != "nvidia-cdi-hook") {
    return std::nullopt;
  }
  if (hook.args.size() <= verb) return std::nullopt;
  CdiVerb found;
  found.name = hook.args[verb];
  for (std::size_t i = verb + 1; i < hook.args.size(); ++i) {
    const std::string& word = hook.args[i];
    if (!word.starts_with('-')) continue;
    const std::string option = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    if (const auto equals = option.find('='); equals != std::string::npos) {
      found.options.emplace_back(option.substr(0, equals), option.substr(equals + 1));
    } else if (i + 1 < hook.args.size() && !hook.args[i + 1].starts_with('-')) {
      found.options.emplace_back(option, hook.args[++i]);
    } else {
      found.options.emplace_back(option, "");
    }
  }
  return found;
}

}  // namespace spc
