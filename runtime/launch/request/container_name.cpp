#include "launch/request/container_name.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>

#include "base/format.hpp"
#include "image/reference/named_image.hpp"

namespace spc {
namespace {

constexpr std::size_t kLongest = 64;

struct UseWord {
  std::string_view word;
  ContainerName::Use use;
};
constexpr UseWord kUses[] = {
    {"auto", ContainerName::Use::automatic},  {"create", ContainerName::Use::create},
    {"exec", ContainerName::Use::exec},       {"no_exec", ContainerName::Use::no_exec},
    {"replace", ContainerName::Use::replace}, {"remove", ContainerName::Use::remove}};

bool may_be_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                    : std::nullopt;
}

/// Slurm's numbers of the steps that it makes by itself.
std::optional<std::uint32_t> step_number(std::string_view text) {
  if (text == "batch") return 0xfffffffb;
  if (text == "interactive") return 0xfffffffa;
  return number(text);
}

}  // namespace

Result<ContainerName> ContainerName::parse(std::string_view text) {
  ContainerName name;
  const auto colon = text.find(':');
  name.text = text.substr(0, colon);
  if (colon != std::string_view::npos) {
    const auto* const found = std::ranges::find(kUses, text.substr(colon + 1), &UseWord::word);
    if (found == std::end(kUses)) {
      return Error(ErrorKind::invalid,
                   "--container-name: flag must be \"auto\", \"create\", \"exec\", \"no_exec\", "
                   "\"replace\" or \"remove\"");
    }
    name.use = found->use;
  }
  if (name.text.empty()) return Error(ErrorKind::invalid, "--container-name: empty name");
  if (name.text.size() > kLongest || !std::ranges::all_of(name.text, may_be_in_name)) {
    return Error(ErrorKind::invalid,
                 formatted("--container-name: {} is not a valid name", in_quotes(name.text)))
        .hint("up to 64 letters, digits, dots, dashes and underscores");
  }
  return name;
}

Digest ContainerName::key() const { return name_key(text); }

std::optional<Digest> ContainerName::step_key() const {
  const auto dot = text.find('.');
  if (dot == std::string::npos) return std::nullopt;
  const auto job = number(std::string_view(text).substr(0, dot));
  const auto step = step_number(std::string_view(text).substr(dot + 1));
  if (!job || !step) return std::nullopt;
  Digest key;
  std::memcpy(key.bytes.data(), &*job, sizeof *job);
  std::memcpy(key.bytes.data() + sizeof *job, &*step, sizeof *step);
  return key;
}

}  // namespace spc
