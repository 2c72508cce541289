#include "doctor/node.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "base/bytes.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/listener.hpp"
#include "base/process/child.hpp"
#include "base/process/kernel.hpp"
#include "base/process/own_program.hpp"
#include "base/process/supervised.hpp"
#include "base/process/user_namespace.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "image/pull/layer_process.hpp"
#include "launch/site/site_request.hpp"
#include "protocol/policy.hpp"
#include "reference/reference.hpp"
#include "registry/client.hpp"
#include "registry/http.hpp"
#include "registry/signature.hpp"
#include "share/node_networks.hpp"
#include "task/security.hpp"

namespace spc {

// --- kernel ---

namespace {

/// Runs `probe` in a child and returns its errno, 0 on success.
int tried(const std::function<int()>& probe) {
  auto child = Child::run([&] { return probe() & 0xff; }, "probe the kernel", 0);
  if (!child) return child.error().sys_errno();
  const ExitStatus status = child->wait();
  return status.signalled() ? EIO : status.code();
}

int own_namespaces() {
  const auto entered = enter_user_namespace(RootMap::self);
  return entered ? 0 : entered.error().sys_errno() == 0 ? EIO : entered.error().sys_errno();
}

int fuse_mount() {
  if (const int failed = own_namespaces(); failed != 0) return failed;
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return errno;
  const std::string options = "fd=" + std::to_string(device) +
                              ",rootmode=40000,user_id=" + std::to_string(::geteuid()) +
                              ",group_id=" + std::to_string(::getegid());
  return ::mount("probe", "/tmp", "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0 ? 0 : errno;
}

int writable_overlay() {
  if (const int failed = own_namespaces(); failed != 0) return failed;
  if (::mount("probe", "/tmp", "tmpfs", 0, nullptr) != 0 || ::chdir("/tmp") != 0) return errno;
  for (const char* name : {"low", "up", "work", "root"}) {
    if (::mkdir(name, 0755) != 0) return errno;
  }
  const char* options = "lowerdir=low,upperdir=up,workdir=work,userxattr";
  if (::mount("overlay", "root", "overlay", 0, options) != 0) return errno;
  return ::mkdir("root/made", 0755) == 0 ? 0 : errno;
}

Finding finding(const char* what, int failed, Finding::Verdict otherwise, const char* cure) {
  if (failed == 0) return {what, Finding::Verdict::ok, "works", ""};
  return {what, otherwise, std::strerror(failed), cure};
}

std::string release() {
  utsname system{};
  ::uname(&system);
  return std::string("Linux ") + system.release;
}

Finding kernel_is_new() {
  if (running_kernel() >= kMapsSquashfs) return {"kernel", Finding::Verdict::ok, release(), ""};
  if (check_kernel()) {
    return {"kernel", Finding::Verdict::warning, release(),
            "the kernel mounts layers from 6.2 on, before where it has erofs (5.19) or the store "
            "is on XFS or Btrfs; FUSE serves others"};
  }
  return {"kernel", Finding::Verdict::failed, release(), "use Linux 5.12 or newer; 6.2 is fastest"};
}

/// Checks fs.suid_dumpable. With 1, users can trace the helpers, which they may execute but not
/// read.
std::vector<Finding> suid_dumpable() {
  const UniqueFd file(::open("/proc/sys/fs/suid_dumpable", O_RDONLY | O_CLOEXEC));
  char value = 0;
  if (!file || ::read(file.get(), &value, 1) != 1 || value != '1') return {};
  return {{"core dumps", Finding::Verdict::warning,
           "fs.suid_dumpable is 1: users can trace programs of the node's service user",
           "sysctl fs.suid_dumpable=0, or 2 for core dumps that only root can read"}};
}

/// Says whether this machine can build images.
Finding can_build(bool has_needed) {
  if (has_needed) return {"scontainer build", Finding::Verdict::ok, "works", ""};
  return {"scontainer build", Finding::Verdict::warning,
          "needs user namespaces and FUSE, see above",
          "build in a job on a node that has them: srun scontainer build ..."};
}

}  // namespace

std::vector<Finding> examine_kernel() {
  const bool root = ::geteuid() == 0;
  const auto bad = root ? Finding::Verdict::warning : Finding::Verdict::failed;
  std::vector<Finding> findings{kernel_is_new()};
  const int namespaces = tried(own_namespaces);
  findings.push_back(finding(
      "user namespaces", namespaces, Finding::Verdict::failed,
      "sysctl user.max_user_namespaces must be above 0, and on Debian and Ubuntu "
      "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0"));
  if (namespaces != 0) {
    if (!root) findings.push_back(can_build(false));
    return findings;
  }
  const int fuse = tried(fuse_mount);
  findings.push_back(finding("FUSE", fuse, bad, "modprobe fuse; /dev/fuse must have mode 0666"));
  if (!root) findings.push_back(can_build(fuse == 0));
  findings.push_back(finding(
      "unprivileged overlay", tried(writable_overlay), Finding::Verdict::warning,
      "containers of scontainer run are read-only; use Linux 6.12 or newer for writable ones"));
  return findings;
}

// --- node ---

namespace {

using Verdict = Finding::Verdict;

/// Returns the file of a line in plugstack.conf, given as a path or as a name in Slurm's plugin
/// directory.
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

/// Returns a plugstack.conf with the files that it includes.
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

/// Returns the plugin's name or path from the line of plugstack.conf that loads this file.
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

/// Returns whether the plugin is linked with this project's library, unlike NVIDIA's pyxis.
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
    // Users cannot trace programs that they may not read.
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
    // Slurm's own functions are missing here. As in slurmd, they are resolved on their first call.
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

/// Returns whether a slurmd runs on this machine.
bool runs_slurmd() {
  glob_t found{};
  const int failed = ::glob("/proc/[0-9]*/comm", GLOB_NOSORT, nullptr, &found);
  bool runs = false;
  for (std::size_t i = 0; failed == 0 && !runs && i < found.gl_pathc; ++i) {
    const UniqueFd file(::open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC));
    const auto name = file ? read_file(file.get(), 64) : Result<std::string>(std::string());
    // slurmd-wlm: Debian's name of the file, seen after `scontrol reconfigure` (Slurm 24.11)
    runs = name && (*name == "slurmd\n" || *name == "slurmd-wlm\n");
  }
  ::globfree(&found);
  return runs;
}

}  // namespace

bool is_login_host() {
  return ::access(SPC_STORE_DIR "/layers", F_OK) != 0 &&
         ::access(SPC_RUN_DIR "/steps", F_OK) != 0 && !runs_slurmd();
}

Finding examine_node_store() {
  constexpr char kWhat[] = "node store";
  if (is_login_host()) return {kWhat, Verdict::ok, kLoginHost, ""};
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
        0) {  // follows links, as the site may have moved it
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

std::vector<Finding> examine_node() {
  return {examine_programs(), examine_service_user(), examine_node_store(), examine_shared_store(),
          examine_plugin()};
}

Finding examine_config(const std::string& path) {
  const auto failed = [](const Error& why) {
    return Finding{"config.toml", Verdict::failed, why.message(), "see spank-container.conf(5)"};
  };
  const auto config = read_config(path);
  if (!config) return failed(config.error());
  const auto mounts = site_mounts(config->site, UsersMounts::yes);
  if (!mounts) return failed(mounts.error());
  if (!config->site.config_error.empty())
    return {"config.toml", Verdict::warning,
            "jobs use the last valid one until a reboot: " + config->site.config_error, ""};
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
  request.tls = tls_of(settings);
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
  // Without credentials most registries answer 401, which is a valid answer.
  if (answer.status == 200 || answer.status == 401) return {what, Verdict::ok, "answers", ""};
  return {what, Verdict::warning, "answers with status " + std::to_string(answer.status),
          "is it a registry?"};
}

// --- node health ---

namespace {

using Clock = std::chrono::steady_clock;

/// Returns whether the file system of `path` is an overlay, as a container's own root usually is.
bool is_overlay(const char* path) {
  constexpr std::uint32_t kOverlay = 0x794c7630;  // OVERLAYFS_SUPER_MAGIC
  struct statfs status {};
  return ::statfs(path, &status) == 0 && static_cast<std::uint32_t>(status.f_type) == kOverlay;
}

/// Returns the kind of container in which slurmd runs, a text for messages. Empty on a host.
std::string container_of_node() {
  if (std::getenv("KUBERNETES_SERVICE_HOST") != nullptr) return "a pod of Kubernetes";
  if (::access("/run/.containerenv", F_OK) == 0) return "a container of podman or CRI-O";
  if (::access("/.dockerenv", F_OK) == 0) return "a container of docker";
  const UniqueFd file(::open("/proc/1/cgroup", O_RDONLY | O_CLOEXEC));
  const auto groups = file ? read_file(file.get(), 1 << 16) : Result<std::string>(std::string());
  if (groups && groups->find("kubepods") != std::string::npos) return "a pod of Kubernetes";
  // Diskless hosts have an overlay as well, but the kernel's first PID namespace.
  constexpr ino_t kFirst = 0xEFFFFFFC;  // PROC_PID_INIT_INO
  struct stat status {};
  const bool has_own = ::stat("/proc/self/ns/pid", &status) == 0 && status.st_ino != kFirst;
  return has_own && is_overlay("/") ? "a container" : "";
}

/// Returns the reason why slurmd's programs in this container cannot mount: 0 if they can.
int mount_as_root() {
  if (::unshare(CLONE_NEWNS) != 0) return errno;
  return ::mount("probe", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, nullptr) == 0 ? 0 : errno;
}

/// Checks whether the kernel can read the store's layers. Without loop devices, FUSE serves them.
Finding examine_loop_devices(bool is_pod, bool has_fuse) {
  constexpr char kLoop[] = "loop devices";
  const char* const cure =
      is_pod ? "securityContext of slurmd's container: privileged: true" : "modprobe loop";
  const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  const int failed = errno;
  if (control && !is_pod) return {kLoop, Verdict::ok, "the kernel reads layers", ""};
  if (control) {
    // A pod's /dev has the nodes of the pod's start. It gets none that the kernel makes later.
    glob_t nodes{};
    (void)::glob("/dev/loop[0-9]*", GLOB_NOSORT, nullptr, &nodes);
    const auto number = nodes.gl_pathc;
    ::globfree(&nodes);
    return {kLoop, Verdict::ok,
            formatted("the kernel reads layers from {} devices, FUSE serves others", number), ""};
  }
  const auto config = read_config(SPC_CONFIG_FILE);
  const std::string method = config ? config->squashfs : "auto";
  if (is_login_host()) return {kLoop, Verdict::ok, kLoginHost, ""};
  const bool serves = method == "fuse" || (method == "auto" && failed == ENOENT);
  if (serves && has_fuse) {
    return {kLoop, is_pod ? Verdict::ok : Verdict::warning,
            "none: FUSE serves layers, by a process of the job", is_pod ? "" : cure};
  }
  return {kLoop, Verdict::failed, formatted("/dev/loop-control: {}", std::strerror(failed)),
          has_fuse ? formatted("squashfs = \"fuse\" in config.toml, or {}", cure) : cure};
}

/// Checks what a container withholds from slurmd. Each cure is a field of the container's
/// securityContext or a volume. Returns no finding on a host.
std::vector<Finding> examine_pod(const std::string& container) {
  if (container.empty()) return {};
  std::vector<Finding> findings{{"machine", Verdict::ok, container, ""}};
  // Users' tasks have no capabilities, but may run this check in a job.
  if (::geteuid() == 0) {
    findings.push_back(
        finding("capabilities", tried(mount_as_root), Verdict::failed,
                "securityContext of slurmd's container: privileged: true, or capabilities: {add: "
                "[SYS_ADMIN]} with seccompProfile: {type: Unconfined}"));
  }
  if (is_overlay(SPC_STORE_DIR)) {
    findings.push_back({"store's volume", Verdict::warning,
                        SPC_STORE_DIR " is on the container's own overlay: named containers fail, "
                                      "and images are lost with the pod",
                        "mount a volume at " SPC_STORE_DIR ": emptyDir: {}, or hostPath"});
  }
  return findings;
}

/// Checks the kernel features that root's containers need.
std::vector<Finding> examine_kernel_of_node() {
  constexpr auto kBad = Finding::Verdict::failed;
  const std::string container = container_of_node();
  const bool is_pod = !container.empty();
  // On kernels that map the layers' owners, only image files of users need FUSE.
  const bool maps = running_kernel() >= kMapsSquashfs || maps_only_erofs() ||
                    (check_kernel() && files_share_blocks(SPC_STORE_DIR));
  const auto without_fuse = maps ? Finding::Verdict::warning : kBad;
  auto findings = suid_dumpable();
  const int fuse = tried(fuse_mount);
  findings.insert(
      findings.begin(),
      {maps ? Finding{"kernel", Finding::Verdict::ok, release(), ""} : kernel_is_new(),
       finding("user namespaces", tried(own_namespaces), kBad,
               is_pod ? "securityContext of slurmd's container: seccompProfile: {type: "
                        "Unconfined}; on the host, sysctl user.max_user_namespaces above 0"
                      : "sysctl user.max_user_namespaces must be above 0"),
       finding("FUSE", fuse, without_fuse,
               is_pod ? "give slurmd's container /dev/fuse: a device plugin, or securityContext: "
                        "privileged: true"
                      : "modprobe fuse; /dev/fuse must have mode 0666")});
  if (::geteuid() == 0) findings.push_back(examine_loop_devices(is_pod, fuse == 0));
  for (Finding& one : examine_pod(container)) findings.push_back(std::move(one));
  return findings;
}

struct NodeCheck {
  const char* what;
  std::vector<Finding> (*examine)();
};

/// Checks what slurmd created in /run, and the site's policy as jobs see it. The agent rewrites a
/// policy of another version.
Finding examine_run() {
  constexpr char kRun[] = "node's state";
  if (is_login_host()) return {kRun, Finding::Verdict::ok, kLoginHost, ""};
  struct stat status {};
  if (::lstat(SPC_RUN_DIR "/steps", &status) != 0) {
    return {kRun, Finding::Verdict::failed,
            formatted("{}: {}", SPC_RUN_DIR "/steps", std::strerror(errno)),
            "start slurmd, which creates it"};
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != 0 || (status.st_mode & 07777) != 0700) {
    return {kRun, Finding::Verdict::failed, SPC_RUN_DIR "/steps has a wrong owner or mode",
            "restart slurmd, which corrects them"};
  }
  const UniqueFd file(
      ::open(SPC_RUN_DIR "/policy", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file && errno == ENOENT)
    return {kRun, Finding::Verdict::ok, "no container was started yet", ""};
  const auto bytes = file ? read_file(file.get(), sizeof(PolicyRecord) + PolicyRecord::kMostText)
                          : Result<std::string>(Error::from_errno(errno, "open"));
  const bool sound =
      bytes && bytes->size() >= sizeof(PolicyRecord) &&
      std::memcmp(bytes->data(), PolicyRecord::kMagic, sizeof PolicyRecord::kMagic) == 0;
  if (!sound) {
    return {kRun, Finding::Verdict::warning,
            SPC_RUN_DIR "/policy cannot be read, or is of another version",
            "the next container makes it again"};
  }
  return {kRun, Finding::Verdict::ok, SPC_RUN_DIR, ""};
}

/// Returns whether the kernel has loaded the profile. Its list has one line per profile: name,
/// blank, mode in parentheses. Only root may read the list.
bool has_apparmor_profile(const std::string& name) {
  const UniqueFd file(::open("/sys/kernel/security/apparmor/profiles", O_RDONLY | O_CLOEXEC));
  const auto loaded = file ? read_file(file.get(), 4 << 20) : Result<std::string>(std::string());
  return !loaded || loaded->empty() ||
         ("\n" + *loaded).find("\n" + name + " (") != std::string::npos;
}

Finding examine_labels() {
  constexpr char kWhat[] = "security labels";
  const auto site = SitePolicy::read();
  if (site.apparmor_profile.empty() && site.selinux_label.empty())
    return {kWhat, Finding::Verdict::ok, "none", ""};
  const bool has_apparmor = has_security_module(SecurityModule::apparmor);
  if (!site.apparmor_profile.empty() && has_apparmor &&
      !has_apparmor_profile(site.apparmor_profile)) {
    return {kWhat, Finding::Verdict::failed,
            formatted("AppArmor has no profile {}", in_quotes(site.apparmor_profile)),
            "load it: apparmor_parser --replace FILE"};
  }
  const bool counts = (!site.apparmor_profile.empty() && has_apparmor) ||
                      (!site.selinux_label.empty() && has_security_module(SecurityModule::selinux));
  if (counts)
    return {kWhat, Finding::Verdict::ok, site.apparmor_profile + " " + site.selinux_label, ""};
  return {kWhat, Finding::Verdict::warning,
          "this kernel has neither AppArmor nor SELinux by which containers are to be confined",
          "boot with security=apparmor or security=selinux, or remove the keys from config.toml"};
}

/// Reports problems of jobs as failures only on a node that runs jobs.
std::vector<Finding> needed(Finding finding) {
  if (finding.verdict == Finding::Verdict::warning) finding.verdict = Finding::Verdict::failed;
  return {std::move(finding)};
}

/// Checks in this order, each in its own process.
constexpr NodeCheck kNodeChecks[] = {
    {"kernel", examine_kernel_of_node},
    {"programs", [] { return std::vector{examine_programs()}; }},
    {"service user", [] { return needed(examine_service_user()); }},
    {"node store", [] { return needed(examine_node_store()); }},
    {"space of the store", [] { return std::vector{examine_space()}; }},
    {"layers", [] { return std::vector{examine_layers()}; }},
    {"shared store", [] { return std::vector{examine_shared_store()}; }},
    {"node's state", [] { return std::vector{examine_run()}; }},
    {"config.toml", [] { return std::vector{examine_config(SPC_CONFIG_FILE)}; }},
    {"security labels", [] { return std::vector{examine_labels()}; }},
    {"Slurm plugin", [] { return std::vector{examine_plugin()}; }},
};

constexpr std::size_t kFields = 4;

std::string packed(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& one : findings) {
    for (const std::string& field :
         {one.what, std::to_string(static_cast<int>(one.verdict)), one.detail, one.cure}) {
      text += std::string(field.c_str()) + '\0';
    }
  }
  return text;
}

std::vector<Finding> unpacked(const std::string& text) {
  std::vector<Finding> findings;
  const auto fields = split(text, '\0');
  for (std::size_t at = 0; at + kFields < fields.size(); at += kFields) {
    const auto verdict = static_cast<Finding::Verdict>(fields[at + 1].front() - '0');
    findings.push_back({std::string(fields[at]), verdict, std::string(fields[at + 2]),
                        std::string(fields[at + 3])});
  }
  return findings;
}

}  // namespace

std::vector<Finding> examine_health() {
  constexpr std::chrono::seconds kLimit{10};
  const auto end = Clock::now() + kLimit;
  std::vector<Finding> findings;
  for (const NodeCheck& check : kNodeChecks) {
    // A check that hangs still leaves one second for each of the others.
    const auto left = std::max<Clock::duration>(end - Clock::now(), std::chrono::seconds(1));
    const auto limit = std::min<Clock::duration>(left, std::chrono::seconds(3));
    const auto answer =
        answer_before(Clock::now() + limit, [&] { return packed(check.examine()); });
    auto found = answer ? unpacked(*answer) : std::vector<Finding>();
    if (found.empty()) {
      // A warning only: a user who keeps the node's disk or processors busy must not drain it.
      found.push_back({check.what, Finding::Verdict::warning, "no answer in time",
                       "look for a file system or a name service that does not answer"});
    }
    for (Finding& one : found) findings.push_back(std::move(one));
  }
  return findings;
}

Finding::Verdict worst_of(const std::vector<Finding>& findings) {
  auto worst = Finding::Verdict::ok;
  for (const Finding& one : findings) worst = std::max(worst, one.verdict);
  return worst;
}

namespace {

// --- peer reachability ---

using Verdict = Finding::Verdict;
constexpr char kOtherNodes[] = "other nodes";
constexpr int kReach = 500;  // milliseconds
constexpr std::uint16_t kSomePort = 40'000;
constexpr std::size_t kEnough = 16;  // nodes, to find another one than this

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

unsigned number(std::string_view text) {
  unsigned found = 0;
  std::from_chars(text.data(), text.data() + text.size(), found);
  return found;
}

/// Returns why the port cannot be reached. Empty if it can: a refused connection also proves that
/// the host answers.
std::string unreachable(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list); failed != 0)
    return ::gai_strerror(failed);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
  const UniqueFd socket(::socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return std::strerror(errno);
  int failed = ::connect(socket.get(), list->ai_addr, list->ai_addrlen) == 0 ? 0 : errno;
  if (failed == EINPROGRESS) {
    pollfd one{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&one, 1, kReach) <= 0) return "no answer";
    socklen_t size = sizeof failed;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &size);
  }
  return failed == 0 || failed == ECONNREFUSED ? "" : std::strerror(failed);
}

/// Checks whether another node of the job can be reached at the port range of peers. Returns the
/// reason in the first line and the fix in the second. Empty if it can be reached.
std::string look_at_neighbour(const std::vector<std::string>& nodes, const std::string& ports) {
  const std::string own = variable("SLURMD_NODENAME");
  const auto other = std::find_if(nodes.begin(), nodes.end(),
                                  [&](const std::string& node) { return node != own; });
  if (other == nodes.end()) return {};
  const std::string port =
      ports.empty() ? std::to_string(kSomePort) : ports.substr(0, ports.find('-'));
  const std::string why = unreachable(*other, port);
  if (why.empty()) return {};
  return formatted(
      "{} at port {}: {}\nopen the firewall of the nodes to each other for the ports of [peers] "
      "ports, or set [peers] enabled = false",
      *other, port, why);
}

/// Checks srun's port for its tasks, as the tracker listens on the same host.
std::string look_at_srun() {
  const std::string host = variable("SLURM_LAUNCH_NODE_IPADDR"),
                    port = variable("SLURM_SRUN_COMM_PORT");
  if (host.empty() || port.empty()) return {};
  const std::string why = unreachable(host, port);
  if (why.empty()) return {};
  return formatted("srun at {}: {}\nopen the firewall of srun's host to the nodes", host, why);
}

Finding not_used(const std::string& lines) {
  const std::size_t end = std::min(lines.find('\n'), lines.size());
  return {kOtherNodes, Verdict::warning,
          formatted("not used, each node pulls by itself: {}", lines.substr(0, end)),
          lines.substr(std::min(end + 1, lines.size()))};
}

}  // namespace

Finding examine_peers() {
  const auto config = read_config(SPC_CONFIG_FILE);
  if (!config)
    return {kOtherNodes, Verdict::warning, config.error().message(),
            "the administrator: scontainer doctor --node"};
  const PeersConfig& peers = config->peers;
  if (!peers.enabled)
    return {kOtherNodes, Verdict::ok, "off, each node pulls by itself: [peers] enabled is false",
            ""};
  std::vector<Network> wanted;
  for (const std::string& text : peers.networks) wanted.push_back(Network::parse(text));
  const auto own = NodeNetworks::find().in(wanted);
  if (own.empty()) {
    return not_used(
        "this node has no address in [peers] networks\ncorrect [peers] networks in config.toml, or "
        "set [peers] enabled = false");
  }
  if (const auto listener =
          Listener::open(PortRange::parse(peers.ports).value_or(PortRange()), own.front().address);
      !listener) {
    return not_used(listener.error().message() +
                    "\ngive [peers] ports more ports: a step needs one on each of its nodes");
  }
  const std::string step_nodes = variable("SLURM_STEP_NUM_NODES"),
                    job_nodes = variable("SLURM_JOB_NUM_NODES");
  const unsigned nodes = number(step_nodes.empty() ? job_nodes : step_nodes);
  if (nodes == 1) {
    return {kOtherNodes, Verdict::ok,
            formatted("none: this {} has one node", step_nodes.empty() ? "job" : "step"), ""};
  }
  const std::string here = url_of({.ip = own.front().address, .port = 1}).substr(7);
  const std::string at = formatted(
      "at {}, {}", here.substr(0, here.rfind(':')),
      peers.ports.empty() ? std::string("any port that is free") : "ports " + peers.ports);
  if (nodes == 0)
    return {kOtherNodes, Verdict::ok, formatted("on, for steps on several nodes, {}", at), ""};
  const auto list = nodes_of_list(
      variable(step_nodes.empty() ? "SLURM_JOB_NODELIST" : "SLURM_STEP_NODELIST"), kEnough);
  const auto wrong = answer_before(std::chrono::steady_clock::now() + std::chrono::seconds(3), [&] {
    const std::string lines = look_at_srun();
    return lines.empty() ? look_at_neighbour(list, peers.ports) : lines;
  });
  if (!wrong) return not_used("no answer in time\nlook for a name server that does not answer");
  if (!wrong->empty()) return not_used(*wrong);
  const std::string who = variable("SLURM_LAUNCH_NODE_IPADDR").empty()
                              ? "the srun of a step"
                              : "srun at " + variable("SLURM_LAUNCH_NODE_IPADDR");
  return {
      kOtherNodes, Verdict::ok,
      formatted(
          "on, before the shared store and the registry: {} nodes, {}; {} says who takes from whom",
          nodes, at, who),
      ""};
}

// --- image source order ---

Finding examine_image_way() {
  constexpr char kWhat[] = "image sources";
  const auto config = read_config(SPC_CONFIG_FILE);
  if (!config)
    return {kWhat, Finding::Verdict::warning, config.error().message(),
            "the administrator: scontainer doctor --node"};
  std::string way = "the node's store";
  if (examine_node_store().verdict != Finding::Verdict::ok)
    way += " (not ready: see scontainer doctor)";
  // Returns the reason and the fix on two lines, empty if the directory is usable.
  const auto wrong = answer_before(std::chrono::steady_clock::now() + std::chrono::seconds(3), [] {
    const Finding found = examine_shared_store();
    return found.verdict == Finding::Verdict::ok ? std::string() : found.detail + "\n" + found.cure;
  });
  const std::string shared =
      wrong.value_or("no answer in time\nlook for a file system that does not answer");
  const std::size_t end = std::min(shared.find('\n'), shared.size());
  if (!config->shared.directory.empty()) {
    way += formatted(", then shared store {}{}", config->shared.directory,
                     shared.empty() ? "" : formatted(" (not used: {})", shared.substr(0, end)));
  }
  for (const auto& [registry, settings] : config->registries) {
    if (settings.mirrors.empty() || settings.blocked) continue;
    way +=
        formatted(", then for images of {} mirrors {}", registry, joined(settings.mirrors, ", "));
  }
  if (shared.empty()) return {kWhat, Finding::Verdict::ok, way + ", then the registry", ""};
  return {kWhat, Finding::Verdict::warning, way + ", then the registry",
          shared.substr(std::min(end + 1, shared.size()))};
}

}  // namespace spc
