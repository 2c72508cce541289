#include "launch/site/tag_memory.hpp"

#include <linux/keyctl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <ctime>

#include "base/text.hpp"
#include "base/unique_fd.hpp"

namespace spc {
namespace {

constexpr char kKeyType[] = "user";
constexpr char kKeyName[] = "spank-container tags";
constexpr std::size_t kMostText =
    4000;  // of the 20,000 bytes that the kernel gives a user for all keys

/// Whoever is in possession of a keyring may read its keys: a keyring of this process that leads to
/// the user's makes it so.
bool possess_keyring() {
  return ::syscall(SYS_keyctl, KEYCTL_LINK, KEY_SPEC_USER_KEYRING, KEY_SPEC_PROCESS_KEYRING) == 0;
}

std::string read_key() {
  const long key =
      ::syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_USER_KEYRING, kKeyType, kKeyName, 0);
  std::string text(kMostText, '\0');
  const long size =
      key < 0 ? -1 : ::syscall(SYS_keyctl, KEYCTL_READ, key, text.data(), text.size());
  text.resize(size < 0 || static_cast<std::size_t>(size) > text.size()
                  ? 0
                  : static_cast<std::size_t>(size));
  return text;
}

/// Several sruns of a user may each add something at once to what they have read. A name in the
/// kernel that one process has at a time makes them take turns; somebody else may sit on it, so
/// nobody waits for long, and it goes with its process.
class TurnToWrite {
 public:
  TurnToWrite() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    const std::string name = std::string(kKeyName) + " of " + std::to_string(::geteuid());
    const std::size_t size = name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
    constexpr int kPatience = 100;  // milliseconds
    for (int i = 0;
         ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 &&
         i < kPatience;
         ++i) {
      ::poll(nullptr, 0, 1);
    }
  }

 private:
  UniqueFd socket_;
};

bool take_number(std::string_view text, std::int64_t& number) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && rest == text.data() + text.size();
}

}  // namespace

std::string RememberedTag::str() const {
  return std::to_string(asked_at) + " " + std::to_string(tag_ttl) + " " + std::to_string(job_ttl) +
         " " + answer;
}

std::optional<RememberedTag> RememberedTag::parse(const std::string& text) {
  const auto words = split(text, ' ');
  RememberedTag tag;
  if (words.size() != 4 || !take_number(words[0], tag.asked_at) ||
      !take_number(words[1], tag.tag_ttl) || !take_number(words[2], tag.job_ttl)) {
    return std::nullopt;
  }
  tag.answer = words[3];
  return tag;
}

std::optional<RememberedTag> TagMemory::find(const std::string& image, std::int64_t now) const {
  for (const Line& line : lines_) {
    if (line.image == image && line.until > now) return RememberedTag::parse(line.tag);
  }
  return std::nullopt;
}

void TagMemory::add(const std::string& image, const RememberedTag& tag, std::int64_t now,
                    std::int64_t until) {
  if (image.find_first_of(" \n") != std::string::npos) return;
  const auto known = find(image, now);
  if (known && known->asked_at > tag.asked_at)
    return;  // by an srun that began later and was faster
  std::erase_if(lines_, [&](const Line& line) { return line.image == image || line.until <= now; });
  lines_.insert(lines_.begin(), {.until = until, .image = image, .tag = tag.str()});
}

std::int64_t TagMemory::until() const {
  std::int64_t last = 0;
  for (const Line& line : lines_) last = std::max(last, line.until);
  return last;
}

std::string TagMemory::str(std::size_t most) const {
  std::string text;
  for (const Line& line : lines_) {
    const std::string next = std::to_string(line.until) + " " + line.image + " " + line.tag + "\n";
    if (text.size() + next.size() > most) break;
    text += next;
  }
  return text;
}

TagMemory TagMemory::parse(const std::string& text) {
  TagMemory memory;
  for (const auto& words : split(text, '\n')) {
    Line line;
    const auto first = words.find(' ');
    const auto second = first == std::string::npos ? first : words.find(' ', first + 1);
    if (second == std::string::npos || !take_number(words.substr(0, first), line.until)) continue;
    line.image = words.substr(first + 1, second - first - 1);
    line.tag = words.substr(second + 1);
    memory.lines_.push_back(std::move(line));
  }
  return memory;
}

std::optional<RememberedTag> remembered_tag(const std::string& image) {
  if (!possess_keyring()) return std::nullopt;
  return TagMemory::parse(read_key()).find(image, ::time(nullptr));
}

void remember_tag(const std::string& image, const RememberedTag& tag, unsigned seconds) {
  if (seconds == 0 || !possess_keyring()) return;
  const TurnToWrite turn;
  const std::int64_t now = ::time(nullptr);
  auto memory = TagMemory::parse(read_key());
  memory.add(image, tag, now, now + seconds);
  const std::string text = memory.str(kMostText);
  if (text.empty()) return;
  const long key =
      ::syscall(SYS_add_key, kKeyType, kKeyName, text.data(), text.size(), KEY_SPEC_USER_KEYRING);
  if (key >= 0)
    ::syscall(SYS_keyctl, KEYCTL_SET_TIMEOUT, key, static_cast<unsigned>(memory.until() - now));
}

}  // namespace spc
