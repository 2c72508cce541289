#include <algorithm>
#include <array>
#include <cctype>

#include "base/format.hpp"
#include "image/reference/file_url.hpp"
#include "launch/spec/container_spec.hpp"
#include "protocol/task.hpp"

namespace spc {
namespace {

/// A name like this may be that of a secret.
bool may_be_secret(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  constexpr std::array<std::string_view, 5> kMarks{"TOKEN", "SECRET", "PASS", "KEY", "CREDENTIAL"};
  return std::any_of(kMarks.begin(), kMarks.end(),
                     [&](auto mark) { return name.find(mark) != std::string::npos; });
}

std::string words(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& word : list) text += (text.empty() ? "" : " ") + in_quotes(word);
  return text;
}

std::string flags_in_words(const MountPlan& mount) {
  std::string text = (mount.flags & TaskMessage::source_read_only) != 0 ? "ro" : "rw";
  if ((mount.flags & TaskMessage::source_no_exec) != 0) text += "+noexec";
  if ((mount.flags & TaskMessage::source_no_devices) != 0) text += "+nodev";
  if ((mount.flags & TaskMessage::source_squashfs) != 0) text += "+sqsh";
  if ((mount.flags & TaskMessage::source_private) != 0) text += "+private";
  if ((mount.flags & TaskMessage::source_unbindable) != 0) text += "+unbindable";
  return text;
}

std::string namespaces_in_words(std::uint32_t bits) {
  std::string text = "mount";
  for (const NamespaceKind& kind : kNamespaceKinds) {
    if ((bits & kind.bit) != 0) text += std::string(", ") + kind.name;
  }
  return text + " (all others are the host's)";
}

/// `os Debian GNU/Linux 12 (bookworm); python 3.11`
std::string facts_in_words(const std::vector<std::string>& facts) {
  std::string text;
  for (std::string fact : facts) {
    if (const auto equals = fact.find('='); equals != std::string::npos) fact[equals] = ' ';
    text += (text.empty() ? "" : "; ") + printable(fact);
  }
  return text;
}

std::string file_system_of(const ContainerSpec& spec) {
  std::string text;
  switch (spec.from) {
    case ContainerSpec::From::store:
      text = std::to_string(spec.layers) + " layers in the node's store";
      break;
    case ContainerSpec::From::file: text = "squashfs file, served by FUSE"; break;
    case ContainerSpec::From::directory: text = "directory"; break;
  }
  if (spec.from == ContainerSpec::From::store && spec.by_fuse) text += ", served by FUSE";
  return text + (spec.writable ? "; writable, changes are discarded" : "; read-only");
}

std::string entrypoint_line(const ContainerSpec& spec) {
  if (!spec.settings.environment_scripts.empty() && !spec.entrypoint.empty())
    return "a shell that reads the env scripts first";
  if (spec.entrypoint_mode == EntrypointMode::node && !spec.entrypoint.empty())
    return words(spec.entrypoint) + ", once per node";
  if (spec.entrypoint_mode == EntrypointMode::task && !spec.entrypoint.empty())
    return words(spec.entrypoint) + ", in each task";
  std::string text = words(spec.settings.entrypoint);
  if (text.empty() && !spec.settings.start_script.empty())
    text = in_quotes(spec.settings.start_script);
  return text.empty() ? "" : text + ", not run";
}

class Page {
 public:
  void line(std::string_view key, const std::string& value) {
    std::string text(key);
    text += ": ";
    text.resize(std::max(text.size(), kColumn), ' ');
    lines_.push_back(text + value);
  }
  void line_unless_empty(std::string_view key, const std::string& value) {
    if (!value.empty()) line(key, value);
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  static constexpr std::size_t kColumn = 14;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> explain(const ContainerSpec& spec, const LaunchRequest& request) {
  Page page;
  page.line("image", printable(spec.image));
  if (spec.manifest) page.line("manifest", spec.manifest->str());
  page.line("file system", file_system_of(spec));
  page.line("user", formatted("{} ({}:{}), home {}{}", printable(spec.user.name), spec.user.uid,
                              spec.user.gid, in_quotes(spec.user.home),
                              (spec.namespaces & own_user) != 0 ? ", root in the container"
                                                                : ", no privileges"));
  page.line_unless_empty("image's user", spec.settings.user.empty()
                                             ? ""
                                             : in_quotes(spec.settings.user) + ", ignored");
  page.line("namespaces", namespaces_in_words(spec.namespaces));
  page.line("workdir", in_quotes(spec.workdir) +
                           (request.workdir.empty() ? " (image)" : " (--container-workdir)"));
  page.line_unless_empty("env scripts", words(spec.settings.environment_scripts));
  page.line_unless_empty("entrypoint", entrypoint_line(spec));
  page.line_unless_empty("image's cmd", words(spec.settings.command));
  page.line_unless_empty("found in it", facts_in_words(spec.settings.facts));
  page.line_unless_empty("volumes", words(spec.settings.volumes));
  page.line_unless_empty("ports", words(spec.settings.ports));
  for (const auto& [hook, origin] : spec.hook_origins)
    page.line("hook", formatted("{} ({})", hook, printable(origin)));
  for (const auto& [hook, note] : spec.hooks)
    page.line("hook", formatted("{}: {}", hook, printable(note)));
  if (spec.hooks.empty()) page.line("hooks", "none had an effect");
  page.line_unless_empty("command", words(request.command));
  for (const MountPlan& mount : spec.mounts) {
    if (mount.source.empty()) {
      page.line("no mount", formatted("at {} (umount)", in_quotes(mount.target)));
      continue;
    }
    page.line("mount", formatted("{} at {}, {} ({})", in_quotes(mount.source),
                                 in_quotes(mount.target), flags_in_words(mount), mount.asked_by));
  }
  for (const auto& [name, variable] : spec.environment) {
    const bool is_url =
        variable.value.starts_with("https://") || variable.value.starts_with("http://");
    const std::string shown = is_url ? without_secrets(variable.value) : variable.value;
    const std::string value =
        may_be_secret(name) && !variable.value.empty() ? "***" : in_quotes(shown);
    page.line("variable",
              formatted("{}={} ({}{})", printable(name), value, name_of(variable.origin),
                        variable.over_image ? ", not the image's" : ""));
  }
  return page.take();
}

}  // namespace spc
