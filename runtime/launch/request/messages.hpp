#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

class Site;

/// In whose words the user is spoken to: `messages` in config.toml. Scripts and monitoring that were written for pyxis look for
/// some of its lines; these it has exactly, and everything else is ours behind its prefix.
enum class MessageStyle { own, pyxis };

MessageStyle message_style(const Site& site);
/// Before every line for the user.
const char* message_prefix(MessageStyle style);

/// What pyxis has words of its own for.
enum class Event {
  import_begins,  ///< object: the image as the user named it, as for the next two
  import_ends,
  import_fails,
  no_mount_source,  ///< the path
  no_workdir,       ///< the path
};

/// What pyxis says; `detail` is why something failed.
std::string in_words_of_pyxis(Event event, std::string_view object, std::string_view detail = "");

/// Our error, or pyxis's words for it. What failed by a system call says why in both. No style: our words.
Error in_words(const MessageStyle* style, Event event, std::string_view object, Error ours);

}  // namespace spc
