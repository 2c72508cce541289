#include "packaging/compat/enroot/start.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "base/format.hpp"
#include "packaging/compat/enroot/containers.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::enroot {

// --- arguments ---

std::string EnrootArguments::value(std::string_view option) const {
  const auto found = options.find(option);
  return found == options.end() ? std::string() : found->second.back();
}

std::vector<std::string> EnrootArguments::values(std::string_view option) const {
  const auto found = options.find(option);
  return found == options.end() ? std::vector<std::string>() : found->second;
}

Result<EnrootArguments> parse_arguments(std::span<const std::string> words,
                                        std::initializer_list<EnrootOption> known) {
  EnrootArguments arguments;
  std::size_t at = 0;
  for (; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (word.size() < 2 || word[0] != '-') break;
    if (word == "--") {
      ++at;
      break;
    }
    const auto equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string name = word.substr(0, equals);
    const auto* option = std::find_if(known.begin(), known.end(), [&](const EnrootOption& one) {
      return name == std::string("--") + one.name ||
             (one.letter != 0 && name == std::string("-") + one.letter);
    });
    if (option == known.end())
      return Error(ErrorKind::invalid, "Invalid option: " + printable(word));
    std::string value;
    if (!option->takes_value) {
      if (equals != std::string::npos)
        return Error(ErrorKind::invalid, "Invalid option: " + printable(word));
    } else if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (++at < words.size()) {
      value = words[at];
    }
    if (option->takes_value && value.empty())
      return Error(ErrorKind::invalid, "Missing value: " + printable(name));
    arguments.options[option->name].push_back(std::move(value));
  }
  arguments.words.assign(words.begin() + static_cast<std::ptrdiff_t>(std::min(at, words.size())),
                         words.end());
  return arguments;
}

// --- settings ---

using namespace tool;

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Returns whether the variable is set to a value other than the spellings of no and false.
bool is_set(const char* name) {
  static constexpr std::array<std::string_view, 9> kNo{"",   "n", "no", "N",    "No",
                                                       "NO", "f", "F",  "FALSE"};
  const std::string value = variable(name);
  return value != "false" && value != "False" &&
         std::find(kNo.begin(), kNo.end(), value) == kNo.end();
}

std::string place(const char* own, const char* xdg, const std::string& home,
                  const char* default_place) {
  if (auto path = variable(own); !path.empty()) return path;
  if (auto path = variable(xdg); !path.empty()) return path + "/enroot";
  return home + default_place + "/enroot";
}

}  // namespace

Result<EnrootSettings> EnrootSettings::take_from_environment() {
  const auto places = SPC_TRY(Places::find());
  EnrootSettings settings;
  settings.data_path = SPC_TRY(
      absolute_path(place("ENROOT_DATA_PATH", "XDG_DATA_HOME", places.home, "/.local/share")));
  settings.config_path = place("ENROOT_CONFIG_PATH", "XDG_CONFIG_HOME", places.home, "/.config");
  settings.writable = is_set("ENROOT_ROOTFS_WRITABLE");
  settings.remap_root = is_set("ENROOT_REMAP_ROOT");
  settings.mount_home = is_set("ENROOT_MOUNT_HOME");
  if (const auto cache = variable("ENROOT_CACHE_PATH"); !cache.empty()) {
    settings.cache_path = SPC_TRY(absolute_path(cache));
    ::setenv("XDG_DATA_HOME", settings.cache_path.c_str(), 1);
  }
  return settings;
}

// --- URI ---

namespace {

constexpr std::string_view kRegistry = "docker://";

}  // namespace

Result<void> check_uri(const std::string& uri) {
  for (const std::string_view scheme :
       {kRegistry, std::string_view("dockerd://"), std::string_view("podman://")}) {
    if (uri.starts_with(scheme) && uri.size() > scheme.size()) return {};
  }
  return Error(ErrorKind::invalid, "Invalid argument: " + printable(uri));
}

std::string default_file_name(const std::string& uri) {
  const auto separator = uri.find("://");
  std::string image = separator == std::string::npos ? uri : uri.substr(separator + 3);
  if (uri.starts_with(kRegistry)) {
    if (const auto digest = image.rfind("@sha256:"); digest != std::string::npos)
      image.resize(digest);
    if (const auto user = image.rfind('@'); user != std::string::npos) image.erase(0, user + 1);
    const auto slash = image.find('/');
    const std::string first = image.substr(0, slash);
    if (const auto hash = image.find('#'); hash != std::string::npos) {
      image.erase(0, hash + 1);
    } else if (slash != std::string::npos &&
               (first.find_first_of(".:") != std::string::npos || first == "localhost")) {
      image.erase(0, slash + 1);
    }
  }
  std::replace_if(
      image.begin(), image.end(), [](char c) { return c == '/' || c == ':'; }, '+');
  return image + ".sqsh";
}

// --- start ---

namespace {

/// Scripts set this variable of enroot's /etc/rc to run a command without the image's entrypoint.
constexpr char kNoEntrypoint[] = "ENROOT_ENTRYPOINT=";

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

/// Returns the image file `word` if it exists, else the container of this name.
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

/// Returns the environment for `scontainer run`. The container gets only scontainer's own variables
/// and the terminal's type; the hooks get all.
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
  StartCommand start{.arguments = {"run", "--quiet", "--name=" + name_of(container)},
                     .environment = environment_for_start()};
  const auto add = [&](std::string argument) { start.arguments.push_back(std::move(argument)); };
  const auto variables = arguments.values("env");
  const bool has_command = arguments.words.size() > 1;
  if (!has_command ||
      std::find(variables.begin(), variables.end(), kNoEntrypoint) == variables.end())
    add("--entrypoint");
  add(writable ? "--writable" : "--readonly");
  add(settings.mount_home ? "--mount-home" : "--no-mount-home");
  if (settings.remap_root || arguments.has("root")) add("--remap-root");
  if (!container.changes.empty()) add("--changes=" + container.changes);
  for (const char* name : {"XDG_DATA_HOME", "XDG_CONFIG_HOME"}) {
    // These variables are meant for scontainer, not for the container.
    if (std::getenv(name) != nullptr) add(std::string("--env=") + name + "=");
  }
  for (const auto& text : variables) {
    if (text != kNoEntrypoint) add("--env=" + SPC_TRY(variable_for(text)));
  }
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
