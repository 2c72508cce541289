#include "launch/site/tag_memory.hpp"

#include <linux/keyctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/text.hpp"

namespace spc {
namespace {

constexpr char kKeyType[] = "user";
constexpr std::size_t kMostAnswer = 1000;

/// Whoever is in possession of a keyring may read its keys: a keyring of this process that leads to the user's makes it so.
bool possess_keyring() { return ::syscall(SYS_keyctl, KEYCTL_LINK, KEY_SPEC_USER_KEYRING, KEY_SPEC_PROCESS_KEYRING) == 0; }

std::string key_of(const std::string& image) { return "spank-container tag " + image; }

bool take_number(std::string_view text, std::int64_t& number) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && rest == text.data() + text.size();
}

}  // namespace

std::string RememberedTag::str() const {
  return std::to_string(asked_at) + " " + std::to_string(tag_ttl) + " " + std::to_string(job_ttl) + " " + answer;
}

std::optional<RememberedTag> RememberedTag::parse(const std::string& text) {
  const auto words = split(text, ' ');
  RememberedTag tag;
  if (words.size() != 4 || !take_number(words[0], tag.asked_at) || !take_number(words[1], tag.tag_ttl) ||
      !take_number(words[2], tag.job_ttl)) {
    return std::nullopt;
  }
  tag.answer = words[3];
  return tag;
}

std::optional<RememberedTag> remembered_tag(const std::string& image) {
  if (!possess_keyring()) return std::nullopt;
  const long key = ::syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_USER_KEYRING, kKeyType, key_of(image).c_str(), 0);
  if (key < 0) return std::nullopt;
  std::string text(kMostAnswer, '\0');
  const long size = ::syscall(SYS_keyctl, KEYCTL_READ, key, text.data(), text.size());
  if (size <= 0 || static_cast<std::size_t>(size) > text.size()) return std::nullopt;
  text.resize(static_cast<std::size_t>(size));
  return RememberedTag::parse(text);
}

void remember_tag(const std::string& image, const RememberedTag& tag, unsigned seconds) {
  if (seconds == 0 || !possess_keyring()) return;
  const std::string text = tag.str();
  const long key = ::syscall(SYS_add_key, kKeyType, key_of(image).c_str(), text.data(), text.size(), KEY_SPEC_USER_KEYRING);
  if (key >= 0) ::syscall(SYS_keyctl, KEYCTL_SET_TIMEOUT, key, seconds);
}

}  // namespace spc
