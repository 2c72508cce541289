#include "launch/mount_words.hpp"

namespace spc {
namespace {

Error refuse(std::string_view item, const char* why) {
  return Error(ErrorKind::invalid, "--container-mounts: " + quoted(item) + ": " + why).hint("\\\" is a quote that means itself");
}

/// Reads one part from `at` on, to the separator behind it or the end.
Result<MountWord> read_word(std::string_view text, std::size_t& at) {
  const auto begin = at;
  MountWord word;
  word.quoted = at < text.size() && text[at] == '"';
  if (word.quoted) ++at;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\\' && at + 1 < text.size() && std::string_view(",:\\\" ").find(text[at + 1]) != std::string_view::npos) {
      word.text += text[++at];
    } else if (word.quoted && c == '"') {
      ++at;
      if (at < text.size() && text[at] != ':' && text[at] != ',') {
        return refuse(text.substr(begin), "a comma or colon is missing behind the second quote");
      }
      return word;
    } else if (!word.quoted && (c == ':' || c == ',')) {
      return word;
    } else {
      word.text += c;
    }
  }
  if (word.quoted) return refuse(text.substr(begin), "the second quote is missing");
  return word;
}

}  // namespace

Result<MountWords> take_mount(std::string_view& list) {
  MountWords mount;
  for (std::size_t at = 0;; ++at) {
    mount.parts.push_back(SPC_TRY(read_word(list, at)));
    mount.last = at == list.size();
    if (!mount.last && list[at] == ':') continue;
    mount.item = list.substr(0, at);
    list.remove_prefix(mount.last ? at : at + 1);
    return mount;
  }
}

}  // namespace spc
