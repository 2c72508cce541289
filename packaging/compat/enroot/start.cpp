#include "start.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "base/format.hpp"
#include "containers.hpp"
#include "tool/surroundings/started_by_enroot.hpp"

namespace spc::enroot {

using namespace tool;

namespace {

Error bad_argument(const std::string& text) {
  return Error(ErrorKind::invalid, "Invalid argument: " + printable(text));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::string joined(const std::vector<std::string>& words, char separator) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : std::string(1, separator)) + word;
  return text;
}

/// An image file if there is one by this name, else a container.
Result<EnrootContainer> container_or_image(const std::string& data_path, const std::string& word) {
  if (!is_squashfs(word)) return find_container(data_path, word);
  auto path = SPC_TRY(real_path(word));
  return EnrootContainer{.path = path, .image = path, .changes = {}};
}

std::string name_of(const EnrootContainer& container) {
  std::string name = container.path.substr(container.path.rfind('/') + 1);
  if (name.ends_with(".sqsh")) name.resize(name.size() - 5);
  return name;
}

/// scontainer shows the container what it needs itself and the terminal's type; the hooks see
/// everything.
std::vector<std::string> environment_for_start() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  variables.push_back(std::string(kStartedByEnroot) + "=y");
  return variables;
}

}  // namespace

Result<std::string> variable_for(const std::string& text) {
  const std::string name = text.substr(0, text.find('='));
  const bool is_name = !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
                       std::all_of(name.begin(), name.end(), [](unsigned char c) {
                         return std::isalnum(c) != 0 || c == '_';
                       });
  if (!is_name) return bad_argument(text);
  if (name.size() < text.size()) return text;
  const char* value = std::getenv(name.c_str());
  return name + "=" + (value == nullptr ? "" : value);
}

Result<std::string> mount_for(const std::string& entry) {
  const auto fields = split(entry, ':');
  const bool has_blank =
      std::any_of(entry.begin(), entry.end(), [](unsigned char c) { return std::isspace(c) != 0; });
  if (has_blank || fields.size() < 2 || fields[0].empty() || fields[1].empty())
    return bad_argument(entry);
  const bool is_bind =
      fields[0] != "tmpfs" && (fields.size() < 3 || fields[2] == "none" || fields[2] == "bind");
  if (!is_bind) {
    return Error(ErrorKind::refused,
                 formatted("Cannot mount {}: only files and directories of the host are mounted",
                           in_quotes(entry)))
        .hint("SRC:DST[:none:OPTIONS]; /tmp in the container is a tmpfs");
  }
  const auto is_path = [](const std::string& text) { return text[0] == '/' || text[0] == '.'; };
  const std::string source = (is_path(fields[0]) ? "" : "./") + fields[0];
  std::string mount = source + ":" + (is_path(fields[1]) ? "" : "/") + fields[1];
  if (mount.find(',') != std::string::npos) return bad_argument(entry);
  std::vector<std::string> flags;
  for (auto& option : fields.size() > 3 ? split(fields[3], ',') : std::vector<std::string>()) {
    static constexpr std::array<std::string_view, 6> kWithoutMeaning{"",     "defaults", "silent",
                                                                     "loud", "relatime", "nofail"};
    if (option == "nofail" && ::access(source.c_str(), F_OK) != 0) return std::string();
    if (std::find(kWithoutMeaning.begin(), kWithoutMeaning.end(), option) == kWithoutMeaning.end())
      flags.push_back(option);
  }
  return mount + (flags.empty() ? "" : ":" + joined(flags, '+'));
}

Result<StartCommand> start_command(const EnrootSettings& settings,
                                   const EnrootArguments& arguments) {
  const auto container = SPC_TRY(container_or_image(settings.data_path, arguments.words[0]));
  const bool writable = settings.writable || arguments.has("rw");
  const bool unpacked = container.image == container.path && !is_squashfs(container.image);
  if (writable && unpacked) {
    return Error(ErrorKind::refused, formatted("Cannot write to {}: enroot itself has unpacked it",
                                               printable(container.path)))
        .hint("enroot export it, enroot create it again");
  }
  StartCommand start{
      .arguments = {"run", "--quiet", "--entrypoint", "--name=" + name_of(container)},
      .environment = environment_for_start()};
  const auto add = [&](std::string argument) { start.arguments.push_back(std::move(argument)); };
  add(writable ? "--writable" : "--readonly");
  add(settings.mount_home ? "--mount-home" : "--no-mount-home");
  if (settings.remap_root || arguments.has("root")) add("--remap-root");
  if (!container.changes.empty()) add("--changes=" + container.changes);
  for (const char* name : {"XDG_DATA_HOME", "XDG_CONFIG_HOME"}) {
    if (std::getenv(name) != nullptr)
      add(std::string("--env=") + name + "=");  // they are for scontainer
  }
  for (const auto& text : arguments.values("env")) add("--env=" + SPC_TRY(variable_for(text)));
  for (const auto& entry : arguments.values("mount")) {
    if (const auto mount = SPC_TRY(mount_for(entry)); !mount.empty()) add("--mounts=" + mount);
  }
  if (const auto script = arguments.value("rc"); !script.empty()) {
    add("--mounts=" + SPC_TRY(real_path(script)) + ":/etc/rc:ro");
  }
  add(container.image);
  if (arguments.words.size() > 1) add("--");
  for (std::size_t i = 1; i < arguments.words.size(); ++i) add(arguments.words[i]);
  return start;
}

}  // namespace spc::enroot
