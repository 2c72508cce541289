#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"
#include "launch/policy/site_policy.hpp"

namespace spc {

/// The message texts: `messages` in config.toml. Scripts and monitoring written for pyxis look for
/// some of its lines; these are exact, and everything else is our text with pyxis's prefix.
enum class MessageStyle { own, pyxis };

MessageStyle message_style(const SitePolicy& site);
/// Prefix of every line for the user.
const char* message_prefix(MessageStyle style);

/// Events with pyxis texts.
enum class Event {
  import_begins,  ///< object: the image as given by the user, as for the next two
  import_ends,
  import_fails,
  no_mount_source,  ///< the path
  no_workdir,       ///< the path
};

/// pyxis's text; `detail` is the reason of a failure.
std::string in_words_of_pyxis(Event event, std::string_view object, std::string_view detail = "");

/// Our error, or pyxis's text for it. Both include the reason of a failed system call. No style:
/// our text.
Error in_words(const MessageStyle* style, Event event, std::string_view object, Error ours);

}  // namespace spc
