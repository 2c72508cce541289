#include "launch/request/messages.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "launch/policy/site_policy.hpp"

namespace spc {
namespace {

/// {} is the object, [] the detail.
struct Wording {
  Event event;
  std::string_view text;
};
constexpr Wording kPyxis[] = {
    {Event::import_begins, "importing docker image: {}"},
    {Event::import_ends, "imported docker image: {}"},
    {Event::import_fails, "failed to import docker image: {}"},
    {Event::no_mount_source, "source path does not exist: {}"},
    {Event::no_workdir, "couldn't chdir to {}: []"},
};

}  // namespace

MessageStyle message_style(const SitePolicy& site) {
  return site.messages == "pyxis" ? MessageStyle::pyxis : MessageStyle::own;
}

const char* message_prefix(MessageStyle style) {
  return style == MessageStyle::pyxis ? "pyxis: " : "spank-container: ";
}

std::string in_words_of_pyxis(Event event, std::string_view object, std::string_view detail) {
  const auto* wording = std::find_if(std::begin(kPyxis), std::end(kPyxis),
                                     [&](const Wording& one) { return one.event == event; });
  std::string text;
  for (std::string_view rest = wording->text; !rest.empty();) {
    const bool is_object = rest.starts_with("{}");
    if (is_object || rest.starts_with("[]")) {
      text += printable(is_object ? object : detail);
      rest.remove_prefix(2);
    } else {
      text += rest.front();
      rest.remove_prefix(1);
    }
  }
  return text;
}

Error in_words(const MessageStyle* style, Event event, std::string_view object, Error ours) {
  if (style == nullptr || *style == MessageStyle::own) return ours;
  return {
      ours.kind(),
      in_words_of_pyxis(event, object, ours.sys_errno() == 0 ? "" : ::strerror(ours.sys_errno()))};
}

}  // namespace spc
