#include "image/credentials/credentials_enroot.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/format.hpp"
#include "base/text.hpp"
#include "image/credentials/credentials_command.hpp"

namespace spc {
namespace {

constexpr std::string_view kBlanks = " \t\r";

/// Takes the first word.
std::string_view take_word(std::string_view& rest) {
  rest = trimmed(rest);
  const std::string_view word = rest.substr(0, rest.find_first_of(kBlanks));
  rest.remove_prefix(word.size());
  return word;
}

bool is_name(std::string_view text) {
  return !text.empty() && (text[0] < '0' || text[0] > '9') &&
         text.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") ==
             std::string_view::npos;
}

/// The words of a command that a shell would leave as they are; empty if it would not.
std::vector<std::string> plain_words(std::string_view command) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./:@%+,=";
  std::vector<std::string> words;
  while (!trimmed(command).empty()) {
    const std::string_view word = take_word(command);
    if (word.find_first_not_of(kPlain) != std::string_view::npos) return {};
    words.emplace_back(word);
  }
  // `NAME=value program` sets a variable.
  if (!words.empty() && words[0].find('=') != std::string::npos) return {};
  return words;
}

Result<SecretText> output_of(const std::vector<std::string>& command) {
  const auto output = SPC_TRY(run_command(command, ""));
  if (output.status != 0) {
    return Error(ErrorKind::unavailable,
                 formatted("run {}: {}", in_quotes(command[0]), output.ending()));
  }
  std::string_view text = output.out.text();
  while (text.ends_with('\n')) text.remove_suffix(1);
  return SecretText(std::string(text));
}

Result<SecretText> expanded(std::string_view text, bool may_run) {
  if (!text.starts_with('$')) return SecretText(std::string(take_word(text)));
  std::string_view name = text.substr(1);
  if (name.starts_with('{') && name.ends_with('}')) name = name.substr(1, name.size() - 2);
  if (is_name(name)) {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr)
      return Error(ErrorKind::not_found, formatted("the variable {} is not set", in_quotes(name)));
    return SecretText(value);
  }
  if (!may_run) {
    return std::move(Error(ErrorKind::refused,
                           "its password is a command, but other users can write the file"))
        .hint("it must be owned by the user with mode 0600");
  }
  if (text.starts_with("$(") && text.ends_with(')')) {
    if (const auto words = plain_words(text.substr(2, text.size() - 3)); !words.empty())
      return output_of(words);
  }
  return output_of({"/bin/sh", "-c", "printf %s \"" + std::string(text) + "\""});
}

bool fits(std::string_view machine, const ImageReference& image) {
  const std::string_view registry = image.registry;
  if (machine == registry) return true;
  const auto known = parse_registry(machine);
  if (known && *known == image.registry) return true;
  if (image.registry == "docker.io") return machine == "auth.docker.io";
  // enroot leaves the port out. An IPv6 address ends with a bracket.
  const std::size_t colon = registry.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && registry.find(']', colon) == std::string_view::npos;
  return has_port && machine == registry.substr(0, colon);
}

}  // namespace

Result<std::optional<RegistrySecret>> secret_in_enroot(std::string_view text,
                                                       const std::string& path,
                                                       const ImageReference& image,
                                                       const std::string& user, bool may_run) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (take_word(line) != "machine") continue;
    const std::string_view machine = take_word(line);
    if (!fits(machine, image)) continue;
    const std::string step = formatted("credentials {}, line {}", in_quotes(path), number);
    if (take_word(line) != "login")
      return Error(ErrorKind::invalid,
                   step + ": expected machine HOST login USER password PASSWORD");
    const std::string_view login = take_word(line);
    if (take_word(line) != "password")
      return Error(ErrorKind::invalid,
                   step + ": expected machine HOST login USER password PASSWORD");
    if (!user.empty() && login != user) continue;
    RegistrySecret secret;
    secret.username = login;
    secret.password = SPC_TRY_DURING(step, expanded(trimmed(line), may_run));
    secret.source = path;
    if (secret.password.empty()) return Error(ErrorKind::invalid, step + ": the password is empty");
    return std::optional(std::move(secret));
  }
  return std::optional<RegistrySecret>();
}

}  // namespace spc
