#include "arguments.hpp"

#include <algorithm>

namespace spc::enroot {

std::string EnrootArguments::value(std::string_view option) const {
  const auto found = options.find(option);
  return found == options.end() ? std::string() : found->second.back();
}

std::vector<std::string> EnrootArguments::values(std::string_view option) const {
  const auto found = options.find(option);
  return found == options.end() ? std::vector<std::string>() : found->second;
}

Result<EnrootArguments> parse_arguments(std::span<const std::string> words,
                                        std::initializer_list<EnrootOption> known) {
  EnrootArguments arguments;
  std::size_t at = 0;
  for (; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (word.size() < 2 || word[0] != '-') break;
    if (word == "--") {
      ++at;
      break;
    }
    const auto equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string name = word.substr(0, equals);
    const auto* option = std::find_if(known.begin(), known.end(), [&](const EnrootOption& one) {
      return name == std::string("--") + one.name ||
             (one.letter != 0 && name == std::string("-") + one.letter);
    });
    if (option == known.end())
      return Error(ErrorKind::invalid, "Invalid option: " + printable(word));
    std::string value;
    if (!option->takes_value) {
      if (equals != std::string::npos)
        return Error(ErrorKind::invalid, "Invalid option: " + printable(word));
    } else if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (++at < words.size()) {
      value = words[at];
    }
    if (option->takes_value && value.empty())
      return Error(ErrorKind::invalid, "Missing value: " + printable(name));
    arguments.options[option->name].push_back(std::move(value));
  }
  arguments.words.assign(words.begin() + static_cast<std::ptrdiff_t>(std::min(at, words.size())),
                         words.end());
  return arguments;
}

}  // namespace spc::enroot
