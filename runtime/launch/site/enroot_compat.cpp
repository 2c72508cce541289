#include "launch/site/enroot_compat.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hook_engine/enroot_fstab.hpp"
#include "hook_engine/hook_directory.hpp"

namespace spc {

// --- enroot text ---

namespace {

constexpr std::string_view kBlanks = " \t\r";

/// Returns a path in the syntax of --container-mounts.
std::string escaped(std::string_view path) {
  std::string text;
  for (const char c : path) {
    if (std::string_view(",: \t\"'\\").find(c) != std::string_view::npos) text += '\\';
    text += c;
  }
  return text;
}

/// Returns whether the mount is in every container: the host's /proc, /sys and /dev, and its name
/// files.
bool is_standard(const std::string& source, const std::string& target) {
  if (source != target) return false;
  for (const char* tree : {"/proc", "/sys", "/dev"}) {
    if (target == tree || target.starts_with(tree + std::string("/"))) return true;
  }
  return target == "/etc/hosts" || target == "/etc/hostname" || target == "/etc/resolv.conf";
}

/// Returns whether every container has a mount of this type at `target`.
bool is_standard_type(std::string_view type, const std::string& target) {
  if (type == "tmpfs") return target == "/tmp" || target == "/dev/shm";
  return (type == "proc" && target == "/proc") || (type == "sysfs" && target == "/sys") ||
         target.starts_with("/dev/");
}

/// Returns whether the option is the default in our containers or affects enroot only.
bool says_nothing(std::string_view option) {
  constexpr std::array<std::string_view, 5> kNothing{"suid", "dev", "rbind", "defaults",
                                                     "x-create=auto"};
  return std::find(kNothing.begin(), kNothing.end(), option) != kNothing.end() ||
         option.starts_with("uid=") || option.starts_with("gid=") ||
         option.starts_with("nr_inodes=") || option.starts_with("huge=");
}

std::string as_flags(const std::vector<std::string>& options) {
  std::string text;
  for (const std::string& option : options) {
    if (!says_nothing(option)) text.append(text.empty() ? ":" : "+").append(option);
  }
  return text;
}

/// Returns the mount of a line; empty if every container has it.
std::optional<EnrootMount> mount_of(std::string_view text, const Variables& variables) {
  EnrootMount mount{.line = 0, .text = std::string(text), .problem = {}};
  const auto line =
      parse_fstab_line(text, [&](std::string field) { return with_variables(field, variables); });
  if (!line) {
    mount.problem = "not an fstab entry";
    return mount;
  }
  const bool is_tree = line->type == "none" || line->type == "bind";
  if (line->source.empty() || !line->target.starts_with('/')) {
    mount.problem = "the target is not an absolute path";
  } else if (line->detach) {
    mount.text = "umount:" + escaped(line->target) + (line->no_fail ? ":nofail" : "");
  } else if (is_tree ? is_standard(line->source, line->target)
                     : is_standard_type(line->type, line->target)) {
    return std::nullopt;
  } else if (line->type == "tmpfs") {
    mount.text = "tmpfs:" + escaped(line->target) + as_flags(line->options);
  } else if (!is_tree) {
    mount.problem = formatted("file systems of type \"{}\" are not supported", line->type);
  } else if (!line->source.starts_with('/')) {
    mount.problem = "the source is not an absolute path";
  } else {
    mount.text = escaped(line->source) + ":" + escaped(line->target) + as_flags(line->options);
  }
  return mount;
}

/// Returns whether a shell would yield another value than with_variables().
bool needs_shell(std::string_view value) {
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (std::string_view("`|&;<>()\\*?[]").find(value[i]) != std::string_view::npos) return true;
    if (value[i] != '$') continue;
    const auto end = value.find('}', i);
    if (i + 1 == value.size() || value[i + 1] != '{' || end == std::string_view::npos) return true;
    if (!std::all_of(value.begin() + static_cast<std::ptrdiff_t>(i) + 2,
                     value.begin() + static_cast<std::ptrdiff_t>(end), is_shell_name_character)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string with_variables(std::string_view text, const Variables& variables) {
  std::string replaced;
  while (!text.empty()) {
    const auto begin = text.find("${");
    const auto end = begin == std::string_view::npos ? begin : text.find('}', begin);
    replaced += text.substr(0, end == std::string_view::npos ? end : begin);
    if (end == std::string_view::npos) break;
    const std::string_view name = text.substr(begin + 2, end - begin - 2);
    if (!name.empty() && std::all_of(name.begin(), name.end(), is_shell_name_character)) {
      const auto found = variables.find(std::string(name));
      if (found != variables.end()) replaced += found->second;
    } else {
      replaced += text.substr(begin, end + 1 - begin);
    }
    text.remove_prefix(end + 1);
  }
  return replaced;
}

std::vector<std::string> parse_environment_file(std::string_view text) {
  std::vector<std::string> variables;
  while (!text.empty()) {
    const std::string_view line = trimmed(next_part(text, '\n'));
    const auto equals = line.find('=');
    if (equals == std::string_view::npos || !is_shell_name(line.substr(0, equals)) ||
        line.starts_with("ENROOT_"))
      continue;
    const std::string_view value = unquoted(line.substr(equals + 1));
    variables.push_back(std::string(line.substr(0, equals + 1)).append(value));
  }
  return variables;
}

Variables parse_environ(std::string_view text, const Variables& variables) {
  Variables found;
  for (const std::string& variable : parse_environment_file(text)) {
    const auto equals = variable.find('=');
    found[variable.substr(0, equals)] =
        with_variables(std::string_view(variable).substr(equals + 1), variables);
  }
  return found;
}

EnrootConf parse_enroot_conf(std::string_view text, const Variables& variables) {
  EnrootConf conf;
  while (!text.empty()) {
    const std::string_view line = trimmed(next_part(text, '\n'));
    const std::string_view name = line.substr(0, line.find_first_of(kBlanks));
    if (name.empty() || !std::all_of(name.begin(), name.end(), is_shell_name_character)) continue;
    const std::string_view value = unquoted(trimmed(line.substr(name.size())));
    if (needs_shell(value)) {
      conf.needs_shell.emplace_back(name);
    } else {
      conf.values[std::string(name)] = with_variables(value, variables);
    }
  }
  return conf;
}

std::vector<EnrootMount> parse_enroot_fstab(std::string_view text, const Variables& variables) {
  std::vector<EnrootMount> mounts;
  for (const auto& [number, line] : fstab_lines(text)) {
    auto mount = mount_of(line, variables);
    if (!mount) continue;
    mount->line = number;
    mounts.push_back(*std::move(mount));
  }
  return mounts;
}

// --- enroot compat ---

namespace {

constexpr char kSystem[] = "/etc/enroot";
constexpr char kWhat[] = "configuration";
constexpr std::size_t kMostBytes = 1 << 20;

enum class Whose { site, user };

/// Returns the file's text; empty if the file does not exist.
Result<std::optional<std::string>> text_of(const std::string& path, Whose whose) {
  if (whose == Whose::site) {
    const auto file = open_trusted_file(path, kWhat, owner_of_the_node());
    if (!file && file.error().kind() == ErrorKind::not_found) return std::optional<std::string>();
    if (!file) return file.error();
    return std::optional(SPC_TRY_DURING(path, read_file(file->get(), kMostBytes)));
  }
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return std::optional<std::string>();
  return std::optional(SPC_TRY_DURING(path, read_file(file.get(), kMostBytes)));
}

/// Returns the files of a directory with this suffix, sorted by name.
Result<std::vector<std::string>> files_in(const std::string& path, std::string_view end,
                                          Whose whose) {
  std::vector<std::string> names;
  UniqueFd directory;
  if (whose == Whose::site) {
    auto trusted = open_trusted_directory(path, kWhat, owner_of_the_node());
    if (!trusted && trusted.error().kind() == ErrorKind::not_found) return names;
    directory = SPC_TRY(std::move(trusted));
  } else {
    directory.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory) return names;
  }
  DirectoryReader files(std::move(directory));
  while (files.next()) {
    if (files.name().ends_with(end) && !files.name().starts_with('.'))
      names.push_back(path + "/" + files.c_name());
  }
  if (files.error() != 0) return Error::from_errno(files.error(), "read " + in_quotes(path));
  std::sort(names.begin(), names.end());
  return names;
}

Result<void> each_file(
    const std::string& directory, std::string_view end, Whose whose,
    const std::function<void(const std::string& path, const std::string& text)>& use) {
  for (const std::string& path : SPC_TRY(files_in(directory, end, whose))) {
    if (const auto text = SPC_TRY(text_of(path, whose))) use(path, *text);
  }
  return {};
}

/// Interprets a boolean as enroot does: all other values mean yes.
bool is_on(std::string_view value) {
  for (const std::string_view no :
       {"", "n", "N", "no", "No", "NO", "f", "F", "false", "False", "FALSE", "0", "off"}) {
    if (value == no) return false;
  }
  return true;
}

/// The settings of enroot.conf and of the job's variables, which override them.
struct Settings {
  Variables values;
  std::set<std::string> of_user;  ///< names whose value differs from the site's
};

Result<Settings> settings_of(const Variables& job, Log* log) {
  Settings settings;
  const auto add = [&](const std::string& path, const std::string& text) {
    const auto conf = parse_enroot_conf(text, job);
    for (const auto& [name, value] : conf.values) settings.values[name] = value;
    for (const std::string& name : conf.needs_shell) {
      if (log != nullptr)
        log->write(LogLevel::debug, formatted("{}: the value of {} needs a shell and is ignored",
                                              path, printable(name)));
    }
  };
  const std::string system = kSystem;
  SPC_TRY(each_file(system + "/enroot.conf.d", ".conf", Whose::site, add));
  if (const auto text = SPC_TRY(text_of(system + "/enroot.conf", Whose::site)))
    add(system + "/enroot.conf", *text);
  for (const auto& [name, value] : job) {
    if (!name.starts_with("ENROOT_")) continue;
    const auto found = settings.values.find(name);
    if (found == settings.values.end() || is_on(found->second) != is_on(value))
      settings.of_user.insert(name);
    settings.values[name] = value;
  }
  return settings;
}

}  // namespace

Result<Variables> enroot_settings(const Variables& job) {
  return SPC_TRY(settings_of(job, nullptr)).values;
}

std::string enroot_directory_of_user(const Variables& settings, const Variables& job) {
  const auto value = [](const Variables& variables, const char* name) {
    const auto found = variables.find(name);
    return found != variables.end() && found->second.starts_with('/') ? found->second
                                                                      : std::string();
  };
  if (auto path = value(settings, "ENROOT_CONFIG_PATH"); !path.empty()) return path;
  if (auto path = value(job, "XDG_CONFIG_HOME"); !path.empty()) return path + "/enroot";
  const std::string home = value(job, "HOME");
  return home.empty() ? "" : home + "/.config/enroot";
}

bool is_on_for_enroot(std::string_view value) { return is_on(value); }

namespace {

/// A variable of enroot, the key that it sets, and the equivalent options, which a site can
/// disable; empty: none.
struct Setting {
  const char* name;
  const char* key;
  const char* value;  ///< value of the key; nullptr: that of the variable
  const char* option;
  const char* opposite;
};
constexpr Setting kSettings[] = {
    {"ENROOT_ROOTFS_WRITABLE", "writable", nullptr, "container-writable", "container-readonly"},
    {"ENROOT_REMAP_ROOT", "remap_root", nullptr, "container-remap-root", ""},
    {"ENROOT_MOUNT_HOME", "mount_home", nullptr, "container-mount-home", ""},
    {"ENROOT_UNSHARE_NET", "unshare", "net", "container-unshare", ""},
    {"ENROOT_UNSHARE_IPC", "unshare", "ipc", "container-unshare", ""},
    {"ENROOT_UNSHARE_UTS", "unshare", "uts", "container-unshare", ""},
    {"ENROOT_UNSHARE_PID", "unshare", "pid", "container-unshare", ""},
};

void add_settings(SitePolicy& site, const Settings& settings) {
  for (const Setting& setting : kSettings) {
    const auto found = settings.values.find(setting.name);
    if (found == settings.values.end()) continue;
    const bool on = is_on(found->second);
    if (setting.value == nullptr) {
      site.set(setting.key, on ? "true" : "false");
    } else if (on) {
      site.set(setting.key, setting.value);
    }
    const char* option = on ? setting.option : setting.opposite;
    if (settings.of_user.contains(setting.name))
      site.options_of_user.emplace_back(option, setting.name);
  }
}

Result<void> add_directory(SitePolicy& site, const std::string& directory, Whose whose,
                           const Variables& job, Log* log) {
  const bool of_user = whose == Whose::user;
  const auto add_mounts = [&](const std::string& path, const std::string& text) {
    for (const EnrootMount& mount : parse_enroot_fstab(text, job)) {
      const std::string where = formatted("{}, line {}", path, mount.line);
      if (mount.problem.empty()) {
        (of_user ? site.enroot_mounts_of_user : site.enroot_mounts)
            .push_back(where + "\t" + mount.text);
        if (of_user) site.options_of_user.emplace_back("container-mounts", where);
      } else if (log != nullptr) {
        log->write(LogLevel::warning,
                   formatted("{}: {}: {}; skipped", where, in_quotes(mount.text), mount.problem));
      }
    }
  };
  const auto add_variables = [&](const std::string& path, const std::string& text) {
    const auto variables = parse_environ(text, job);
    for (const auto& [name, value] : variables) site.env.push_back(name + "=" + value);
    if (of_user && !variables.empty()) site.options_of_user.emplace_back("container-env", path);
  };
  SPC_TRY(each_file(directory + "/mounts.d", ".fstab", whose, add_mounts));
  return each_file(directory + "/environ.d", ".env", whose, add_variables);
}

}  // namespace

Result<void> add_enroot_files(SitePolicy& site, const Variables& job, Log* log) {
  if (!site.enroot_compat) return {};
  const auto own = site.env;
  const Settings settings = SPC_TRY(settings_of(job, log));
  add_settings(site, settings);
  SPC_TRY(add_directory(site, kSystem, Whose::site, job, log));
  if (const std::string users = enroot_directory_of_user(settings.values, job); !users.empty()) {
    SPC_TRY(add_directory(site, users, Whose::user, job, log));
  }
  // appended, so that config.toml overrides them
  site.env.insert(site.env.end(), own.begin(), own.end());
  return {};
}

}  // namespace spc
