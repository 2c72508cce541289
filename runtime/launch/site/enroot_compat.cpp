#include "launch/site/enroot_compat.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/trusted_file.hpp"
#include "hook_engine/hook_directory.hpp"

namespace spc {
namespace {

constexpr char kSystem[] = "/etc/enroot";
constexpr char kWhat[] = "configuration";
constexpr std::size_t kMostBytes = 1 << 20;

enum class Whose { site, user };

/// Nothing if there is no such file.
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

/// The files of a directory that end so, in the order of their names.
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

/// As enroot reads it: everything else means yes.
bool is_on(std::string_view value) {
  for (const std::string_view no :
       {"", "n", "N", "no", "No", "NO", "f", "F", "false", "False", "FALSE", "0", "off"}) {
    if (value == no) return false;
  }
  return true;
}

/// What enroot.conf says, where the job's own variables do not say it.
struct Settings {
  Variables values;
  std::set<std::string> of_user;  ///< names that the site has not set to the same
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

/// A variable of enroot, what it sets, and the options that do the same; empty: none that a site
/// could switch off.
struct Setting {
  const char* name;
  const char* key;
  const char* value;  ///< of the key; nullptr: as the variable says
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
  site.env.insert(site.env.end(), own.begin(), own.end());  // config.toml counts more
  return {};
}

}  // namespace spc
