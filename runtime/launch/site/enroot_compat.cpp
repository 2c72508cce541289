#include "launch/site/enroot_compat.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>

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
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::optional<std::string>();
  return std::optional(SPC_TRY_DURING(path, read_file(file.get(), kMostBytes)));
}

/// The files of a directory that end so, in the order of their names.
Result<std::vector<std::string>> files_in(const std::string& path, std::string_view end, Whose whose) {
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
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(directory.get()), ::closedir);
  if (!stream) return Error::from_errno(errno, "read " + in_quotes(path));
  (void)directory.release();
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name.ends_with(end) && !name.starts_with('.')) names.push_back(path + "/" + entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<void> each_file(const std::string& directory, std::string_view end, Whose whose,
                       const std::function<void(const std::string& path, const std::string& text)>& use) {
  for (const std::string& path : SPC_TRY(files_in(directory, end, whose))) {
    if (const auto text = SPC_TRY(text_of(path, whose))) use(path, *text);
  }
  return {};
}

/// As enroot reads it: everything else means yes.
bool is_on(std::string_view value) {
  for (const std::string_view no : {"", "n", "N", "no", "No", "NO", "f", "F", "false", "False", "FALSE", "0", "off"}) {
    if (value == no) return false;
  }
  return true;
}

/// What enroot.conf says, where the job's own variables do not say it.
Result<Variables> settings_of(const Variables& job, Log* log) {
  Variables settings;
  std::string where;
  const auto add = [&](const std::string& path, const std::string& text) {
    const auto conf = parse_enroot_conf(text, job);
    for (const auto& [name, value] : conf.values) settings[name] = value;
    for (const std::string& name : conf.needs_shell) {
      if (log != nullptr)
        log->write(LogLevel::debug, formatted("{}: the value of {} needs a shell and is ignored",
                                              path, printable(name)));
    }
  };
  const std::string system = kSystem;
  SPC_TRY(each_file(system + "/enroot.conf.d", ".conf", Whose::site, add));
  if (const auto text = SPC_TRY(text_of(system + "/enroot.conf", Whose::site))) add(system + "/enroot.conf", *text);
  for (const auto& [name, value] : job) {
    if (name.starts_with("ENROOT_")) settings[name] = value;
  }
  return settings;
}

}  // namespace

Result<Variables> enroot_settings(const Variables& job) { return settings_of(job, nullptr); }

std::string enroot_directory_of_user(const Variables& settings, const Variables& job) {
  const auto value = [](const Variables& variables, const char* name) {
    const auto found = variables.find(name);
    return found != variables.end() && found->second.starts_with('/') ? found->second : std::string();
  };
  if (auto path = value(settings, "ENROOT_CONFIG_PATH"); !path.empty()) return path;
  if (auto path = value(job, "XDG_CONFIG_HOME"); !path.empty()) return path + "/enroot";
  const std::string home = value(job, "HOME");
  return home.empty() ? "" : home + "/.config/enroot";
}

bool is_on_for_enroot(std::string_view value) { return is_on(value); }

namespace {

void add_settings(SitePolicy& site, const Variables& settings) {
  constexpr std::pair<const char*, const char*> kFlags[] = {
      {"ENROOT_ROOTFS_WRITABLE", "writable"}, {"ENROOT_REMAP_ROOT", "remap_root"}, {"ENROOT_MOUNT_HOME", "mount_home"}};
  for (const auto& [name, key] : kFlags) {
    if (const auto found = settings.find(name); found != settings.end()) site.set(key, is_on(found->second) ? "true" : "false");
  }
  constexpr std::pair<const char*, const char*> kNamespaces[] = {
      {"ENROOT_UNSHARE_NET", "net"}, {"ENROOT_UNSHARE_IPC", "ipc"}, {"ENROOT_UNSHARE_UTS", "uts"}, {"ENROOT_UNSHARE_PID", "pid"}};
  for (const auto& [name, space] : kNamespaces) {
    if (const auto found = settings.find(name); found != settings.end() && is_on(found->second)) site.unshare.emplace_back(space);
  }
}

Result<void> add_directory(SitePolicy& site, const std::string& directory, Whose whose, const Variables& job, Log* log) {
  SPC_TRY(each_file(directory + "/mounts.d", ".fstab", whose, [&](const std::string& path, const std::string& text) {
    for (const EnrootMount& mount : parse_enroot_fstab(text, job)) {
      const std::string where = formatted("{}, line {}", path, mount.line);
      if (mount.problem.empty()) {
        (whose == Whose::site ? site.enroot_mounts : site.enroot_mounts_of_user).push_back(where + "\t" + mount.text);
      } else if (log != nullptr) {
        log->write(LogLevel::warning,
                   formatted("{}: {}: {}; skipped", where, in_quotes(mount.text), mount.problem));
      }
    }
  }));
  return each_file(directory + "/environ.d", ".env", whose, [&](const std::string&, const std::string& text) {
    for (const auto& [name, value] : parse_environ(text, job)) site.env.push_back(name + "=" + value);
  });
}

}  // namespace

Result<void> add_enroot_files(SitePolicy& site, const Variables& job, Log* log) {
  if (!site.enroot_compat) return {};
  const auto own = site.env;
  const Variables settings = SPC_TRY(settings_of(job, log));
  add_settings(site, settings);
  SPC_TRY(add_directory(site, kSystem, Whose::site, job, log));
  if (const std::string users = enroot_directory_of_user(settings, job); !users.empty()) {
    SPC_TRY(add_directory(site, users, Whose::user, job, log));
  }
  site.env.insert(site.env.end(), own.begin(), own.end());  // config.toml counts more
  return {};
}

}  // namespace spc
