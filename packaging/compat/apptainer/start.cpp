// Translation of `apptainer exec`, `run`, `shell`, `test` and `instance start` into `scontainer
// run`.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include "base/format.hpp"
#include "base/text.hpp"
#include "packaging/compat/apptainer/apptainer.hpp"

namespace spc::apptainer {

namespace {

std::string work_directory() {
  std::array<char, PATH_MAX> path{};
  const char* logical = std::getenv("PWD");
  struct stat named {};
  struct stat here {};
  if (logical != nullptr && *logical == '/' && ::stat(logical, &named) == 0 &&
      ::stat(".", &here) == 0 && named.st_ino == here.st_ino && named.st_dev == here.st_dev)
    return logical;
  return ::getcwd(path.data(), path.size()) == nullptr ? "/" : path.data();
}

}  // namespace

std::string absolute(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.starts_with('/') ? path : work_directory() + "/" + path;
}

namespace {

using Use = Flag::Use;

constexpr char kNoLimits[] = "limits come from Slurm (hint: srun --mem, --cpus-per-task)";
constexpr char kOwnNetwork[] = "containers use the network of the host (hint: leave the flag out)";
constexpr char kShared[] = "is not given: processes share the namespace of the host";

constexpr Flag kStartFlags[] = {
    {0, "add-caps", true, Use::refused, "containers have no capabilities of the host"},
    {0, "allow-setuid", false, Use::refused, "set-user-ID programs have no effect in containers"},
    {0, "app", true, Use::refused, "SCIF apps are not supported (hint: exec IMAGE /scif/apps/…)"},
    {0, "apply-cgroups", true, Use::refused, kNoLimits},
    {0, "arch", true},
    {'B', "bind", true},
    {0, "blkio-weight", true, Use::refused, kNoLimits},
    {'e', "cleanenv", false},
    {0, "compat", false},
    {'c', "contain", false},
    {'C', "containall", false},
    {0, "cpus", true, Use::refused, kNoLimits},
    {0, "cpu-shares", true, Use::refused, kNoLimits},
    {0, "cpuset-cpus", true, Use::refused, kNoLimits},
    {0, "cwd", true},
    {0, "disable-cache", false, Use::nothing},
    {0, "dns", true, Use::refused, kOwnNetwork},
    {0, "docker-host", true, Use::nothing},
    {0, "docker-login", false, Use::refused, "(hint: apptainer registry login docker://REGISTRY)"},
    {0, "drop-caps", true, Use::nothing},
    {0, "env", true},
    {0, "env-file", true},
    {'f', "fakeroot", false},
    {0, "fusemount", true, Use::refused,
     "FUSE programs are not mounted (hint: mount it on the host, then --bind it)"},
    {'H', "home", true},
    {0, "hostname", true, Use::warning, "containers have the name of the host"},
    {0, "ignore-fakeroot-command", false, Use::nothing},
    {0, "ignore-subuid", false, Use::nothing},
    {0, "ignore-userns", false, Use::nothing},
    {'i', "ipc", false, Use::warning, kShared},
    {0, "keep-privs", false, Use::refused, "containers have no privileges of the host"},
    {0, "memory", true, Use::refused, kNoLimits},
    {0, "memory-swap", true, Use::refused, kNoLimits},
    {0, "mount", true},
    {'n', "net", false, Use::refused, kOwnNetwork},
    {0, "network", true},
    {0, "network-args", true, Use::refused, kOwnNetwork},
    {0, "no-eval", false, Use::nothing},
    {0, "no-home", false},
    {0, "no-https", false, Use::refused,
     "the site decides this (hint: insecure = true for the registry in config.toml)"},
    {0, "no-init", false, Use::nothing},
    {0, "no-mount", true},
    {0, "no-pid", false, Use::nothing},
    {0, "no-privs", false, Use::nothing},
    {0, "no-umask", false, Use::nothing},
    {0, "nv", false},
    {0, "nvccli", false},
    {0, "oom-kill-disable", false, Use::refused, kNoLimits},
    {'o', "overlay", true},
    {'p', "pid", false, Use::warning, kShared},
    {0, "pids-limit", true, Use::refused, kNoLimits},
    {0, "pwd", true},
    {0, "rocm", false},
    {0, "runscript-timeout", true, Use::nothing},
    {'S', "scratch", true},
    {0, "security", true},
    {0, "sharens", false, Use::nothing},
    {'s', "shell", true},
    {0, "underlay", false, Use::nothing},
    {0, "unsquash", false, Use::nothing},
    {'u', "userns", false, Use::nothing},
    {0, "uts", false, Use::warning, kShared},
    {'W', "workdir", true},
    {'w', "writable", false},
    {0, "writable-tmpfs", false},
};

/// Variables that pass with --cleanenv, and those that scontainer itself reads.
constexpr std::string_view kKept[] = {"HOME", "USER", "LOGNAME", "PATH", "TERM", "LANG"};
constexpr std::string_view kOfScontainer[] = {"SCONTAINER_*", "XDG_*"};

bool is_below(std::string_view path, std::string_view directory) {
  return path == directory ||
         (path.starts_with(directory) && (directory == "/" || path[directory.size()] == '/'));
}

/// Writes a path as a field of --mounts.
std::string escaped(std::string_view path) {
  std::string text;
  for (const char c : path) {
    if (c == ',' || c == ':' || c == '\\' || c == '"' || c == ' ') text += '\\';
    text += c;
  }
  return text;
}

/// Splits a list at its commas; with `at_options`, options behind a second colon stay together.
Words list_of(const std::string& text, bool at_options = false) {
  Words list;
  for (const std::string_view part : split(text, ',')) {
    const bool is_option =
        part == "ro" || part == "rw" || part.starts_with("image-src=") || part.starts_with("id=");
    if (at_options && is_option && !list.empty()) {
      list.back() += "," + std::string(part);
    } else if (!part.empty()) {
      list.emplace_back(part);
    }
  }
  return list;
}

Words lists_of(const Parsed& parsed, std::string_view flag, bool at_options = false) {
  Words list;
  for (const std::string& text : parsed.all(flag)) {
    for (std::string& one : list_of(text, at_options)) list.push_back(std::move(one));
  }
  return list;
}

/// One container on its way from Apptainer's flags to the arguments of `scontainer run`.
class Start {
 public:
  Start(Action action, const Parsed& parsed) : action_(action), parsed_(parsed) {}
  Result<Words> arguments();

 private:
  [[nodiscard]] bool is_on(std::string_view flag, const std::string& of_variable) const;
  [[nodiscard]] std::vector<std::string> all_binds() const;
  [[nodiscard]] bool leaves_out(std::string_view mount) const;
  void add_mount(const std::string& source, const std::string& target, const std::string& options);
  Result<void> add_read_only_overlays(Words& overlays);
  Result<void> add_root();
  Result<void> add_home();
  Result<void> add_bind(const std::string& bind);
  Result<void> add_mount_flag(const std::string& text);
  Result<void> add_binds();
  Result<void> add_scratch();
  void add_temporary();
  void add_work_directory();
  Result<void> add_environment();
  void clean_environment();
  void add_gpu();
  Result<void> add_security();
  void add_command();

  Action action_;
  const Parsed& parsed_;
  Words arguments_{"run"};
  std::string image_;
  std::string home_;  ///< the user's home, as it is called inside
  std::string cwd_ = work_directory();
  std::vector<std::string> visible_;  ///< targets of mounts
  bool is_contained_ = false;
  std::string before_path_, after_path_;  ///< of the container's PATH, with their colons
  bool is_root_ = false;
};

bool Start::is_on(std::string_view flag, const std::string& of_variable) const {
  if (parsed_.has(flag)) return parsed_.value(flag) != "false";
  const std::string value = variable(of_variable).value_or("");
  return !value.empty() && value != "0" && value != "false" && value != "no";
}

bool Start::leaves_out(std::string_view mount) const {
  Words left_out = lists_of(parsed_, "no-mount");
  for (std::string& one : list_of(variable("NO_MOUNT").value_or("")))
    left_out.push_back(std::move(one));
  return std::ranges::find(left_out, mount) != left_out.end();
}

void Start::add_mount(const std::string& source, const std::string& target,
                      const std::string& options) {
  arguments_.push_back("--mounts=" + source + ":" + escaped(target) +
                       (options.empty() ? "" : ":" + options));
  visible_.push_back(target);
}

/// Takes the overlays that end in :ro out of the list: files, and directories with changes.
Result<void> Start::add_read_only_overlays(Words& overlays) {
  for (const std::string& overlay : std::exchange(overlays, {})) {
    if (!overlay.ends_with(":ro")) {
      overlays.push_back(overlay);
      continue;
    }
    const std::string path = absolute(overlay.substr(0, overlay.size() - 3));
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0)
      return Error::from_errno(errno, "open overlay " + in_quotes(path))
          .hint("name a directory, squashfs or ext3 file");
    std::string layer = path;
    for (const char* kept : {"/up", "/upper"})  // ours and Apptainer's
      if (::access((path + kept).c_str(), F_OK) == 0) layer = path + kept;
    arguments_.push_back("--add-layer=" + layer);
  }
  return {};
}

/// The root file system is read-only, as of a SIF, except with the flags for it.
Result<void> Start::add_root() {
  is_root_ = is_on("fakeroot", "FAKEROOT");
  if (is_root_) arguments_.emplace_back("--remap-root");
  Words overlays = lists_of(parsed_, "overlay");
  bool is_writable = is_on("writable-tmpfs", "WRITABLE_TMPFS") || parsed_.has("compat");
  SPC_TRY(add_read_only_overlays(overlays));
  if (overlays.size() > 1)
    return Error(ErrorKind::refused, "--overlay: only one overlay can be writable")
        .hint("--overlay FILE:ro adds more");
  if (is_on("writable", "WRITABLE")) {
    struct stat status {};
    if (::stat(image_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      return Error(ErrorKind::refused, "--writable: only a sandbox directory can be changed")
          .hint("--overlay DIR keeps changes, --writable-tmpfs discards them");
    }
    is_writable = true;
  }
  if (!overlays.empty()) {
    const std::string& directory = overlays.front();
    struct stat status {};
    if (::stat(directory.c_str(), &status) != 0)
      return Error::from_errno(errno, "open overlay " + in_quotes(directory))
          .hint("mkdir, or apptainer overlay create DIR");
    if (!S_ISDIR(status.st_mode)) {
      return Error(ErrorKind::refused,
                   formatted("--overlay: {} is a file, and only directories are writable",
                             in_quotes(directory)))
          .hint(formatted("--overlay {}:ro, or a directory", printable(directory)));
    }
    arguments_.push_back("--changes=" + absolute(directory));
    return {};
  }
  arguments_.emplace_back(is_writable ? "--writable" : "--readonly");
  return {};
}

Result<void> Start::add_home() {
  const char* of_host = std::getenv("HOME");
  const std::string host_home = of_host == nullptr ? "/" : of_host;
  home_ = is_root_ ? "/root" : host_home;
  std::string wanted = parsed_.value("home");
  if (wanted.empty()) wanted = variable("HOME").value_or("");
  if (!wanted.empty()) {
    const auto colon = wanted.find(':');
    const std::string source = absolute(wanted.substr(0, colon));
    home_ = colon == std::string::npos ? source : wanted.substr(colon + 1);
    if (!home_.starts_with('/'))
      return Error(ErrorKind::invalid, "--home: the home inside must be an absolute path");
    arguments_.emplace_back("--no-mount-home");
    add_mount(escaped(source), home_, "");
    arguments_.push_back("--env=HOME=" + home_);
    return {};
  }
  if (is_contained_) return {};  // an empty one
  if (is_on("no-home", "NO_HOME") || leaves_out("home") || host_home == "/") {
    arguments_.emplace_back("--no-mount-home");
    return {};
  }
  arguments_.emplace_back("--mount-home");
  visible_.push_back(home_);
  return {};
}

/// SRC[:DST[:OPTIONS]], as for --bind.
Result<void> Start::add_bind(const std::string& bind) {
  const auto parts = split(bind, ':');
  const std::string source = absolute(std::string(parts[0]));
  const std::string target = parts.size() > 1 && !parts[1].empty() ? std::string(parts[1]) : source;
  if (!target.starts_with('/')) {
    return Error(ErrorKind::invalid,
                 formatted("--bind {}: the destination must be an absolute path", in_quotes(bind)));
  }
  std::string flags;
  for (const std::string_view option :
       parts.size() > 2 ? split(parts[2], ',') : std::vector<std::string_view>()) {
    if (option == "rw" || option.empty()) continue;
    if (option == "image-src=/") {
      continue;  // the file's own root: what a mount of a squashfs shows
    }
    if (option != "ro") {
      return Error(ErrorKind::refused,
                   formatted("--bind {}: {} is not supported", in_quotes(bind), in_quotes(option)))
          .hint("ro, rw, image-src=/");
    }
    flags = "ro";
  }
  add_mount(escaped(source), target, flags);
  return {};
}

/// --mount type=bind,source=SRC,destination=DST[,ro].
Result<void> Start::add_mount_flag(const std::string& text) {
  std::map<std::string, std::string, std::less<>> fields;
  for (const std::string_view field : split(text, ',')) {
    const auto equals = field.find('=');
    std::string key(field.substr(0, equals));
    if (key == "src") key = "source";
    if (key == "dst" || key == "target") key = "destination";
    if (key == "readonly") key = "ro";
    fields[key] = equals == std::string_view::npos ? "" : std::string(field.substr(equals + 1));
  }
  if (fields["type"] != "bind" || fields["source"].empty() || fields["destination"].empty()) {
    return Error(ErrorKind::invalid, formatted("--mount {}: is no bind mount", in_quotes(text)))
        .hint("--mount type=bind,source=SRC,destination=DST");
  }
  const bool is_read_only = fields.contains("ro") && fields["ro"] != "false";
  add_mount(escaped(absolute(fields["source"])), fields["destination"], is_read_only ? "ro" : "");
  return {};
}

std::vector<std::string> Start::all_binds() const {
  Words binds;
  for (const char* name : {"BINDPATH", "BIND"}) {
    for (std::string& bind : list_of(variable(name).value_or(""), true))
      binds.push_back(std::move(bind));
  }
  for (std::string& bind : lists_of(parsed_, "bind", true)) binds.push_back(std::move(bind));
  return binds;
}

Result<void> Start::add_binds() {
  const Words binds = all_binds();
  std::string joined;
  for (const std::string& bind : binds) {
    SPC_TRY(add_bind(bind));
    joined += (joined.empty() ? "" : ",") + bind;
  }
  for (const std::string& text : parsed_.all("mount")) SPC_TRY(add_mount_flag(text));
  arguments_.push_back("--env=APPTAINER_BIND=" + joined);
  arguments_.push_back("--env=SINGULARITY_BIND=" + joined);
  return {};
}

/// -S PATH: an empty directory, in memory or below --workdir.
Result<void> Start::add_scratch() {
  const std::string workdir = parsed_.value("workdir");
  for (const std::string& path : lists_of(parsed_, "scratch")) {
    const std::string target = path.starts_with('/') ? path : "/" + path;
    if (workdir.empty()) {
      add_mount("tmpfs", target, "");
      continue;
    }
    std::string directory = absolute(workdir) + "/scratch";
    ::mkdir(directory.c_str(), 0700);
    std::string name = target.substr(1);
    std::ranges::replace(name, '/', '_');
    directory += "/" + name;
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
      return Error::from_errno(errno, "make directory " + in_quotes(directory));
    add_mount(escaped(directory), target, "");
  }
  return {};
}

/// /tmp and /var/tmp of the host, or with --contain empty ones, which lie below --workdir if given.
void Start::add_temporary() {
  const std::string workdir = parsed_.value("workdir");
  if (!workdir.empty()) ::mkdir(absolute(workdir).c_str(), 0755);
  if (is_contained_) {
    arguments_.emplace_back("--contain");
    if (workdir.empty()) return;
    for (const auto& [name, target] :
         {std::pair("tmp", "/tmp"), std::pair("var_tmp", "/var/tmp")}) {
      const std::string directory = absolute(workdir) + "/" + name;
      ::mkdir(directory.c_str(), 01777);
      add_mount(escaped(directory), target, "");
    }
    visible_.clear();  // they do not show what the host has there
    return;
  }
  if (leaves_out("tmp")) return;
  for (const char* directory : {"/tmp", "/var/tmp"}) {
    if (::access(directory, F_OK) == 0) add_mount(directory, directory, "");
  }
}

/// The caller's work directory, mounted unless a mount shows it or it would cover the image.
void Start::add_work_directory() {
  std::string wanted = parsed_.value("cwd");
  if (wanted.empty()) wanted = parsed_.value("pwd");
  if (wanted.empty()) wanted = variable("CWD").value_or(variable("PWD").value_or(""));
  const auto is_visible = [&](const std::string& path) {
    return std::ranges::any_of(visible_, [&](const auto& at) { return is_below(path, at); });
  };
  constexpr std::string_view kOfImages[] = {"/bin",  "/boot", "/dev", "/etc", "/lib", "/lib64",
                                            "/proc", "/sbin", "/sys", "/usr", "/run", "/var"};
  const bool would_cover =
      cwd_ == "/" || std::ranges::any_of(kOfImages, [&](auto at) { return is_below(cwd_, at); });
  const char* of_host = std::getenv("HOME");
  const bool is_in_home = of_host != nullptr && is_below(cwd_, of_host);
  const bool hides_home = parsed_.has("no-home") && is_in_home;
  if (!is_visible(cwd_) && !is_contained_ && !would_cover && !leaves_out("cwd") && !hides_home)
    add_mount(escaped(cwd_), cwd_, "");
  if (wanted.empty() && is_root_ && is_in_home && !is_visible(cwd_))
    wanted = home_ + cwd_.substr(std::string_view(of_host).size());
  if (wanted.empty() && is_visible(cwd_)) wanted = cwd_;
  if (wanted.empty()) wanted = is_contained_ || is_visible(home_) ? home_ : "/";
  arguments_.push_back("--workdir=" + wanted);
}

/// --cleanenv: scontainer still needs the job's variables, so they are left out behind it.
void Start::clean_environment() {
  std::string names;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view name =
        std::string_view(*one).substr(0, std::string_view(*one).find('='));
    const bool is_kept = std::ranges::find(kKept, name) != std::end(kKept) ||
                         name.find_first_not_of(
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                             "0123456789_") != std::string_view::npos;
    if (!is_kept) names += (names.empty() ? "" : ",") + std::string(name);
  }
  for (const std::string_view name : kOfScontainer)
    names += (names.empty() ? "" : ",") + std::string(name);
  arguments_.push_back("--unsetenv=" + names);
}

Result<void> Start::add_environment() {
  const bool is_clean = is_on("cleanenv", "CLEANENV") || parsed_.has("containall") ||
                        parsed_.has("compat") || variable("CONTAINALL");
  if (is_clean) clean_environment();
  // Packages of pip install --user are those of the home, not of the image.
  if (!is_contained_) ::setenv("PYTHONUSERBASE", (home_ + "/.local").c_str(), 0);
  const std::string name = image_.substr(image_.rfind('/') + 1);
  for (const char* prefix : {"APPTAINER_", "SINGULARITY_"}) {
    arguments_.push_back("--env=" + std::string(prefix) + "NAME=" + name);
    arguments_.push_back("--env=" + std::string(prefix) + "CONTAINER=" + image_);
  }
  if (action_ == Action::shell) arguments_.emplace_back("--env=PS1=Apptainer> ");
  for (const std::string& file : parsed_.all("env-file"))
    arguments_.push_back("--env-file=" + absolute(file));
  // Weaker first: SINGULARITYENV_X, APPTAINERENV_X, --env.
  for (const std::string_view prefix : {"SINGULARITYENV_", "APPTAINERENV_"}) {
    for (char** one = environ; *one != nullptr; ++one) {
      const std::string_view text(*one);
      if (!text.starts_with(prefix) || text.find('=') <= prefix.size()) continue;
      const std::string variable(text.substr(prefix.size()));
      if (variable.starts_with("PREPEND_PATH=")) {
        before_path_ = variable.substr(variable.find('=') + 1) + ":";
      } else if (variable.starts_with("APPEND_PATH=")) {
        after_path_ = ":" + variable.substr(variable.find('=') + 1);
      } else {
        arguments_.push_back("--env=" + variable);
      }
    }
  }
  for (const std::string& text : parsed_.all("env")) {
    Words variables;
    for (const std::string_view part : split(text, ',')) {
      if (part.find('=') == std::string_view::npos && !variables.empty()) {
        variables.back() += "," + std::string(part);
      } else {
        variables.emplace_back(part);
      }
    }
    for (const std::string& one : variables) {
      if (one.find('=') == std::string::npos || one.starts_with('='))
        return Error(ErrorKind::invalid, formatted("--env {}: is not NAME=VALUE", in_quotes(text)));
      arguments_.push_back("--env=" + one);
    }
  }
  return {};
}

void Start::add_gpu() {
  const bool wanted = is_on("nv", "NV") || is_on("nvccli", "NVCCLI") || is_on("rocm", "ROCM");
  arguments_.emplace_back(wanted ? "--gpu" : "--no-gpu");
}

Result<void> Start::add_security() {
  for (const std::string& text : lists_of(parsed_, "security")) {
    if (!text.starts_with("seccomp:")) {
      return Error(ErrorKind::refused,
                   formatted("--security {}: is not supported", in_quotes(text)))
          .hint("--security seccomp:FILE");
    }
    arguments_.push_back("--security=seccomp=" + absolute(text.substr(8)));
  }
  const std::string network = parsed_.value("network");
  if (!network.empty() && network != "host" && network != "bridge")
    return Error(ErrorKind::refused, std::string("--network: ") + kOwnNetwork);
  return {};
}

void Start::add_command() {
  const auto rest = std::span(parsed_.words).subspan(1);
  Words command(rest.begin(), rest.end());
  if (action_ == Action::run && !command.empty()) arguments_.emplace_back("--entrypoint");
  if (action_ == Action::shell) {
    std::string shell = parsed_.value("shell");
    if (shell.empty()) shell = variable("SHELL").value_or("");
    command =
        shell.empty()
            ? Words{"/bin/sh", "-c",
                    "[ -x /bin/bash ] && exec /bin/bash --norc \"$@\"; exec /bin/sh \"$@\"", "sh"}
            : Words{shell};
    command.insert(command.end(), rest.begin(), rest.end());
  }
  const auto script = [&](const char* path, const char* otherwise) {
    command = Words{"/bin/sh", "-c",
                    formatted("[ -e {0} ] && exec /bin/sh {0} \"$@\"; {1}", path, otherwise), "sh"};
    command.insert(command.end(), rest.begin(), rest.end());
  };
  if (action_ == Action::test)
    script("/.singularity.d/test", "echo 'No test script in container' >&2; exit 0");
  if (action_ == Action::instance) script("/.singularity.d/startscript", "exec sleep 2147483647");
  if (!(before_path_ + after_path_).empty() && action_ == Action::run) {
    std::fputs("WARNING: PREPEND_PATH and APPEND_PATH have no effect on the image's own program\n",
               stderr);
  } else if (!(before_path_ + after_path_).empty()) {
    const Words wrapped{"/bin/sh", "-c", "PATH=\"$1$PATH$2\"; export PATH; shift 2; exec \"$@\"",
                        "sh", before_path_, after_path_};
    command.insert(command.begin(), wrapped.begin(), wrapped.end());
  }
  arguments_.push_back(image_);
  arguments_.insert(arguments_.end(), command.begin(), command.end());
}

Result<Words> Start::arguments() {
  if (parsed_.words.empty()) return Error(ErrorKind::invalid, "the image is missing");
  if (action_ == Action::exec && parsed_.words.size() < 2)
    return Error(ErrorKind::invalid, "the command is missing")
        .hint("apptainer exec IMAGE COMMAND; apptainer run IMAGE runs the image's own");
  const std::string& text = parsed_.words.front();
  constexpr std::string_view kInstance = "instance://";
  if (text.starts_with(kInstance)) {
    Words joined{"exec", text.substr(kInstance.size()), "--"};
    if (action_ == Action::shell) joined.emplace_back("/bin/sh");
    joined.insert(joined.end(), parsed_.words.begin() + 1, parsed_.words.end());
    return joined;
  }
  image_ = SPC_TRY(image_of(text));
  is_contained_ =
      is_on("contain", "CONTAIN") || is_on("containall", "CONTAINALL") || parsed_.has("compat");
  if (const std::string arch = parsed_.value("arch"); !arch.empty())
    arguments_.push_back("--platform=linux/" + arch);
  arguments_.emplace_back("--quiet");
  SPC_TRY(add_root());
  add_temporary();
  SPC_TRY(add_home());
  SPC_TRY(add_binds());
  SPC_TRY(add_scratch());
  add_work_directory();
  SPC_TRY(add_environment());
  add_gpu();
  SPC_TRY(add_security());
  add_command();
  return std::move(arguments_);
}

}  // namespace

std::span<const Flag> start_flags() { return kStartFlags; }

Result<Words> start_arguments(Action action, const Parsed& parsed) {
  return Start(action, parsed).arguments();
}

}  // namespace spc::apptainer
