#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/text.hpp"
#include "base/trusted_file.hpp"
#include "image/config/config.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/http.hpp"
#include "launch/site/site_mounts.hpp"
#include "tool/doctor/doctor.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

using Verdict = Finding::Verdict;

std::string free_space(const std::string& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return path;
  return formatted("{}, {} free", path,
                   human_bytes(std::uint64_t{status.f_bavail} * status.f_frsize));
}

/// The file that a line of plugstack.conf means: a path, or a name in Slurm's plugin directory.
std::string plugin_file(const std::string& name) {
  if (name[0] == '/') return name;
  for (const char* pattern :
       {"/usr/lib/*/slurm*/", "/usr/lib64/slurm*/", "/usr/lib/slurm*/", "/usr/local/lib/slurm*/"}) {
    glob_t found{};
    const std::string file = pattern + name;
    std::string first;
    if (::glob(file.c_str(), 0, nullptr, &found) == 0) first = found.gl_pathv[0];
    ::globfree(&found);
    if (!first.empty()) return first;
  }
  return {};
}

/// A plugstack.conf with what it includes.
std::string plugstack(const std::string& path, unsigned depth = 0) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto read = file ? read_file(file.get(), 1 << 20) : Result<std::string>(std::string());
  std::string text = read ? *read : std::string();
  for (const std::string_view line :
       split(read ? std::string_view(*read) : std::string_view(), '\n')) {
    constexpr std::string_view kInclude = "include";
    const std::string_view words = trimmed(line);
    if (!words.starts_with(kInclude) || depth == 3) continue;
    std::string pattern(trimmed(words.substr(kInclude.size())));
    if (!pattern.starts_with('/')) pattern = path.substr(0, path.rfind('/') + 1) + pattern;
    glob_t found{};
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      for (std::size_t i = 0; i < found.gl_pathc; ++i)
        text += "\n" + plugstack(found.gl_pathv[i], depth + 1);
    }
    ::globfree(&found);
  }
  return text;
}

/// The plugin's name, a path for example, in a line of plugstack.conf that asks for this file.
std::string plugin_named_in(const std::string& text, std::string_view plugin) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    line.resize(std::min(line.find('#'), line.size()));
    const auto name = line.find(plugin);
    if (name == std::string::npos) continue;
    const auto before = line.find_last_of(" \t", name);
    const auto begin = before == std::string::npos ? 0 : before + 1;
    return line.substr(begin, name + plugin.size() - begin);
  }
  return {};
}

/// Whether the plugin is linked with our library, which NVIDIA's pyxis is not.
bool is_ours(const std::string& plugin) {
  const UniqueFd file(::open(plugin.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto read = file ? read_file(file.get(), 64 << 20) : Result<std::string>(std::string());
  return read && read->find("libspank_container.so") != std::string::npos;
}

class Answer final : public HttpHandler {
 public:
  Take body(const HttpHead&, std::span<const std::byte>) override { return Take::taken; }
  void ended(const HttpHead& head, HttpEnd end) override {
    status = head.status;
    error = std::move(end.error);
    done = true;
  }
  long status = 0;
  std::optional<Error> error;
  bool done = false;
};

}  // namespace

Finding examine_programs() {
  constexpr char kPrograms[] = "programs";
  for (const char* name : {"import", "layer-writer", "layer-verifier", "fuse", "user-source",
                           "save", "container-helper", "agent"}) {
    const std::string path = own_program(name);
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || ::access(path.c_str(), X_OK) != 0) {
      return {kPrograms, Verdict::failed, formatted("{}: {}", path, std::strerror(errno)),
              "install spank-container completely"};
    }
    if ((status.st_uid != 0 && status.st_uid != ::geteuid()) || (status.st_mode & 022) != 0) {
      return {kPrograms, Verdict::failed, path + " can be changed by others",
              formatted("chown root {0} && chmod 0711 {0}", path)};
    }
    // What users may not read they cannot trace.
    if (::geteuid() == 0 && (status.st_mode & 07777) != 0711) {
      return {kPrograms, Verdict::warning, path + " does not have mode 0711", "chmod 0711 " + path};
    }
  }
  const std::string import = own_program("import");
  return {kPrograms, Verdict::ok, import.substr(0, import.rfind('/')), ""};
}

Finding examine_service_user() {
  const passwd* user = ::getpwnam("spank-container");
  constexpr char kCure[] =
      "for Slurm jobs: useradd --system --no-create-home --shell /usr/sbin/nologin spank-container";
  if (user == nullptr) return {"service user", Verdict::warning, "no user spank-container", kCure};
  if (user->pw_uid == 0)
    return {"service user", Verdict::failed, "spank-container is root", "give it a UID of its own"};
  return {"service user", Verdict::ok, "spank-container, uid " + std::to_string(user->pw_uid), ""};
}

Finding examine_node_store() {
  constexpr char kWhat[] = "node store";
  const passwd* user = ::getpwnam("spank-container");
  struct StorePart {
    const char* path;
    bool of_service_user;
    mode_t mode;
  };
  static constexpr StorePart kWanted[] = {
      {"", false, 0755},         {"/layers", false, 0755}, {"/layers/sha256", false, 0750},
      {"/records", false, 0750}, {"/names", false, 0755},  {"/grants", false, 0750},
      {"/images", true, 0700}};
  for (const StorePart& wanted : kWanted) {
    const std::string path = std::string(SPC_STORE_DIR) + wanted.path;
    struct stat status {};
    if ((path == SPC_STORE_DIR ? ::stat : ::lstat)(path.c_str(), &status) !=
        0) {  // the site may have moved it by a link
      return {kWhat, Verdict::warning, formatted("{}: {}", path, std::strerror(errno)),
              "for Slurm jobs: start slurmd, which creates the store"};
    }
    const uid_t owner = wanted.of_service_user && user != nullptr ? user->pw_uid : 0;
    if (!S_ISDIR(status.st_mode) || status.st_uid != owner ||
        (status.st_mode & 07777) != wanted.mode) {
      return {kWhat, Verdict::failed, path + " has a wrong owner or mode",
              "restart slurmd, which corrects them"};
    }
  }
  const auto trusted = open_trusted_directory(SPC_STORE_DIR, "store");
  if (!trusted) {
    return {kWhat, Verdict::failed, trusted.error().message(),
            "let only root write to the directories that lead to the store"};
  }
  const std::unique_ptr<char, decltype(&::free)> real(::realpath(SPC_STORE_DIR, nullptr), ::free);
  const bool is_moved = real && real.get() != std::string_view(SPC_STORE_DIR);
  return {kWhat, Verdict::ok,
          free_space(SPC_STORE_DIR) + (is_moved ? formatted(", in {}", real.get()) : ""), ""};
}

Finding examine_shared_store() {
  constexpr char kShared[] = "shared store";
  const auto config = read_config(SPC_CONFIG_FILE);
  if (!config || config->shared.directory.empty())
    return {kShared, Verdict::ok, "none: [shared] directory is not set", ""};
  const std::string& directory = config->shared.directory;
  struct stat status {};
  const int err = ::stat(directory.c_str(), &status) != 0 ? errno
                  : !S_ISDIR(status.st_mode)              ? ENOTDIR
                                                          : 0;
  if (err != 0) {
    return {kShared, Verdict::warning, formatted("{}: {}", directory, std::strerror(err)),
            "mount its file system, or correct [shared] directory in config.toml"};
  }
  const passwd* const user = ::getpwnam("spank-container");
  if (user == nullptr || status.st_uid != user->pw_uid || (status.st_mode & 077) != 0) {
    return {kShared, Verdict::warning,
            directory + ": the service user is not its owner, or others can enter it",
            formatted("chown spank-container {0}; chmod 0700 {0}; the service user needs the same "
                      "uid on all nodes",
                      directory)};
  }
  return {kShared, Verdict::ok, directory, ""};
}

Finding examine_plugin() {
  constexpr char kWhat[] = "Slurm plugin";
  for (const char* path : {"/etc/slurm/plugstack.conf", "/etc/slurm-llnl/plugstack.conf",
                           "/usr/local/etc/plugstack.conf", "/run/slurm/conf/plugstack.conf"}) {
    const std::string text = plugstack(path);
    const std::string name = plugin_named_in(text, "spank_container.so");
    const std::string pyxis = plugin_named_in(text, "spank_pyxis.so");
    if (name.empty() && !pyxis.empty() && is_ours(plugin_file(pyxis))) {
      return {kWhat, Verdict::warning,
              formatted("{} names {} and not spank_container.so", path, pyxis),
              "add the line \"required spank_container.so\" for submit hosts that have it"};
    }
    if (name.empty()) continue;
    if (!pyxis.empty() && !is_ours(plugin_file(pyxis))) {
      return {kWhat, Verdict::failed,
              formatted("{} names {} beside NVIDIA's pyxis, {}", path, name, pyxis),
              "remove the line of pyxis: PYXIS_CONTAINER_IMAGE would start two containers"};
    }
    const std::string plugin = plugin_file(name);
    if (plugin.empty()) {
      return {kWhat, Verdict::failed,
              formatted("{} names {}, which is not in Slurm's plugin directory", path, name),
              "install it there, or give its path"};
    }
    // Slurm's own functions are missing here; as in slurmd, they are looked up when they are
    // called.
    const std::unique_ptr<void, int (*)(void*)> loaded(::dlopen(plugin.c_str(), RTLD_LAZY),
                                                       ::dlclose);
    const char* reason = loaded ? "" : ::dlerror();
    if (!loaded && std::strstr(reason, "undefined symbol: s") == nullptr) {
      return {kWhat, Verdict::failed, reason, "install libspank_container.so.1 and run ldconfig"};
    }
    return {kWhat, Verdict::ok, plugin, ""};
  }
  return {kWhat, Verdict::warning, "no plugstack.conf names spank_container.so",
          "for Slurm jobs: add the line \"required spank_container.so\" to plugstack.conf"};
}

std::vector<Finding> examine_own_store(const Places& places) {
  constexpr char kWhat[] = "your store";
  const auto store = make_own_store(places);
  if (!store)
    return {{kWhat, Verdict::failed, store.error().message(),
             "set XDG_DATA_HOME to a writable directory"}};
  struct stat status {};
  if (::fstat(store->get(), &status) != 0 || status.st_uid != ::geteuid() ||
      (status.st_mode & 022) != 0) {
    return {{kWhat, Verdict::failed, places.store + " is accessible to other users",
             "chmod go-w " + places.store}};
  }
  const UniqueFd nameless(
      ::openat(store->get(), "layers/sha256", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!nameless) {
    return {{kWhat, Verdict::failed, formatted("{}: {}", places.store, std::strerror(errno)),
             "set XDG_DATA_HOME to a directory on a local disk: this file system does not support "
             "unnamed files"}};
  }
  return {{kWhat, Verdict::ok, free_space(places.store), ""}};
}

std::vector<Finding> examine_node() {
  return {examine_programs(), examine_service_user(), examine_node_store(), examine_shared_store(),
          examine_plugin()};
}

Finding examine_config(const std::string& path) {
  const auto config = read_config(path);
  if (!config)
    return {"config.toml", Verdict::failed, config.error().message(),
            "fix it: see spank-container.conf(5)"};
  const auto mounts = site_mounts(config->site, UsersMounts::yes);
  if (!mounts)
    return {"config.toml", Verdict::failed, mounts.error().message(),
            "fix it: see spank-container.conf(5)"};
  return {"config.toml", Verdict::ok,
          ::access(path.c_str(), F_OK) == 0 ? path : path + " is missing: defaults", ""};
}

Finding examine_registry(const std::string& config_path, const std::string& wanted) {
  Config config;
  if (auto read = read_config(config_path)) config = *std::move(read);
  const std::string registry = wanted.empty() ? config.default_registry : wanted;
  const std::string what = "registry " + registry;
  const RegistryConfig& settings = config.registry(registry);
  ImageReference reference;
  reference.registry = registry;
  HttpRequest request;
  request.url =
      std::string(settings.insecure ? "http://" : "https://") + reference.api_host() + "/v2/";
  request.ca = settings.ca;
  auto http =
      HttpClient::create({.connect = std::chrono::seconds(5), .stall = std::chrono::seconds(5)});
  if (!http) return {what, Verdict::failed, http.error().message(), ""};
  Answer answer;
  auto started = (*http)->start(request, answer);
  while (started && !answer.done) started = (*http)->wait(std::chrono::milliseconds(200));
  if (!started) return {what, Verdict::warning, started.error().message(), ""};
  if (answer.error) {
    return {what, Verdict::warning, answer.error->message(),
            "check the network, https_proxy and the registry's table in config.toml"};
  }
  // Without credentials most say 401 here, which is what a registry has to say.
  if (answer.status == 200 || answer.status == 401) return {what, Verdict::ok, "answers", ""};
  return {what, Verdict::warning, "answers with status " + std::to_string(answer.status),
          "is it a registry?"};
}

}  // namespace spc::tool
