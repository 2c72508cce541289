#include "launch/request/mount_words.hpp"

#include "base/format.hpp"
#include "launch/request/quoted_text.hpp"

namespace spc {

Result<MountWords> take_mount(std::string_view& list) {
  MountWords mount;
  const std::string_view begin = list;
  for (;;) {
    const std::string_view word = list;
    auto piece = next_piece(list, ":,");
    if (!piece) {
      return Error(ErrorKind::invalid, formatted("--container-mounts: {}: {}", in_quotes(word),
                                                 piece.error().message()))
          .hint("write a literal quote as \\\"");
    }
    mount.parts.push_back({piece->text, word.starts_with('"')});
    if (piece->end == ':') continue;
    mount.last = piece->end == '\0';
    mount.item = begin.substr(0, begin.size() - list.size() - (mount.last ? 0 : 1));
    return mount;
  }
}

}  // namespace spc
