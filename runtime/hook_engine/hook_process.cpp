#include "hook_engine/hook_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <deque>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/process/supervised.hpp"
#include "base/unique_fd.hpp"
#include "hook_engine/hook_directory.hpp"

namespace spc {

// --- site program ---

namespace {

constexpr int kItsOwnFile = 3;

/// Drops all capabilities from every set. Uses raw calls like every child, with the kernel's
/// structures in place of libcap's.
bool give_up_capabilities() {
  struct {
    std::uint32_t version = 0x20080522;  // _LINUX_CAPABILITY_VERSION_3
    int pid = 0;
  } header;
  const std::uint32_t none[6] = {};
  ::prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  return ::syscall(SYS_capset, &header, none) == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

std::vector<std::string> environment_of(const ProgramEdit& program, const HookContext& context) {
  std::vector<std::string> environment{
      "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"};
  const std::string* home = context.of_job("HOME");
  const std::string* user = context.of_job("USER");
  if (!context.home.empty()) {
    environment.push_back("HOME=" + context.home);
  } else if (home != nullptr) {
    environment.push_back("HOME=" + *home);
  }
  const std::string name = !context.user.empty() ? context.user : user != nullptr ? *user : "";
  if (!name.empty()) environment.insert(environment.end(), {"USER=" + name, "LOGNAME=" + name});
  const auto is_plain = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (const auto& [variable, value] : context.job) {
    if (!variable.starts_with("SLURM_") || !std::all_of(variable.begin(), variable.end(), is_plain))
      continue;
    environment.push_back(variable + "=" + value);
  }
  environment.insert(environment.end(), program.env.begin(), program.env.end());
  return environment;
}

/// Returns its time limit, which is hook_timeout of config.toml by default.
std::chrono::seconds limit_of(const ProgramEdit& program, const HookContext& context) {
  const std::string text = context.setting("hook_timeout", "30");
  std::uint64_t seconds = 30;
  std::from_chars(text.data(), text.data() + text.size(), seconds);
  return std::chrono::seconds(program.timeout != 0 ? program.timeout
                                                   : std::max<std::uint64_t>(seconds, 1));
}

}  // namespace

Result<std::string> run_site_program(const std::string& hook, const ProgramEdit& program,
                                     std::string_view input, const HookContext& context, Log& log,
                                     int descriptor) {
  constexpr std::size_t kLastLines = 3;
  std::deque<std::string> last;
  const auto tell = [&](std::string_view line) {
    last.emplace_back(line);
    if (last.size() > kLastLines) last.pop_front();
    log.write(LogLevel::info, formatted("hook {}: {}", hook, printable(line)));
  };
  Program process{.path = program.path,
                  .arguments = program.args,
                  .environment = environment_of(program, context),
                  .descriptors = {},
                  .group = Program::Group::session,
                  .signals = Program::Signals::defaults,
                  .umask = 022,
                  .directory = "/",
                  .prepare = give_up_capabilities};
  if (program.args.empty()) process.arguments = {program.path};
  if (descriptor >= 0) {
    process.descriptors.push_back(
        {descriptor, kItsOwnFile});  // stays open: the interpreter of a script opens it
    process.executed = kItsOwnFile;
  }
  const std::string what = "run " + in_quotes(program.path);
  const RunLimits limits{.time = limit_of(program, context), .output = 1 << 20};
  auto end = run_supervised(std::move(process), input, limits, tell);
  if (!end)
    return Error::from_errno(end.error().sys_errno(), what)
        .hint("its interpreter must exist on the node");
  if (end->good()) return std::move(end->output);
  std::string lines;
  for (const std::string& line : last) lines += (lines.empty() ? "" : "\n") + line;
  return Error(ErrorKind::system, formatted("{}: {}", what, end->reason(limits, lines)));
}

// --- oci hook ---

namespace {

constexpr char kOciVersion[] = "1.0.2";

/// A directory with config.json, with the members that a hook of a step can rely on.
class Bundle {
 public:
  static Result<Bundle> make(const std::string& root, const HookContext& context) {
    Bundle bundle;
    char path[] = "/tmp/spank-container-bundle-XXXXXX";
    if (::mkdtemp(path) == nullptr) return Error::from_errno(errno, "make a bundle in /tmp");
    bundle.path_ = path;
    Json config{{"ociVersion", kOciVersion},
                {"annotations", annotations_of(context)},
                {"mounts", Json::array()}};
    config["root"] = Json{{"path", root}, {"readonly", !context.writable}};
    config["process"] = Json{{"args", context.command}, {"cwd", "/"}, {"env", Json::array()}};
    config["process"]["user"] = Json{{"uid", context.uid}, {"gid", context.gid}};
    for (const auto& [name, value] : context.image)
      config["process"]["env"].push_back(name + "=" + value);
    const UniqueFd file(
        ::open(bundle.file().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) return Error::from_errno(errno, "make " + in_quotes(bundle.file()));
    SPC_TRY(write_all(file.get(), config.str(1)));
    return bundle;
  }
  Bundle(Bundle&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  Bundle(const Bundle&) = delete;
  Bundle& operator=(const Bundle&) = delete;
  ~Bundle() {
    if (path_.empty()) return;
    ::unlink(file().c_str());
    ::rmdir(path_.c_str());
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  Bundle() = default;
  [[nodiscard]] std::string file() const { return path_ + "/config.json"; }
  std::string path_;
};

std::string value_of(const HookContext& context, const char* name) {
  const std::string* value = context.of_job(name);
  return value == nullptr ? "0" : *value;
}

}  // namespace

Result<void> run_oci_hook(const std::string& hook, const ProgramEdit& program,
                          std::string_view status, const std::string& root,
                          const HookContext& context, Log& log) {
  const Bundle bundle = SPC_TRY(Bundle::make(root, context));
  Json state{{"ociVersion", kOciVersion},
             {"status", status},
             {"bundle", bundle.path()},
             {"annotations", annotations_of(context)}};
  state["id"] = value_of(context, "SLURM_JOB_ID") + "." + value_of(context, "SLURM_STEP_ID") + "." +
                value_of(context, "SLURM_NODEID");
  if (status != "stopped") state["pid"] = ::getpid();
  SPC_TRY(run_site_program(hook, program, state.str(), context, log));
  return {};
}

}  // namespace spc
