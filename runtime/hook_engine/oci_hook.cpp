#include "hook_engine/oci_hook.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/file.hpp"
#include "base/json/json.hpp"
#include "base/trusted_file.hpp"
#include "hook_engine/site_program.hpp"

namespace spc {
namespace {

constexpr char kOciVersion[] = "1.0.2";

/// A directory with config.json, as much of it as a hook of a step can rely on.
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

Result<void> run_oci_hook(const std::string& hook, const OciProgram& program,
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
  HookProcess process;
  process.program = program.path;
  process.arguments = program.args.empty() ? std::vector<std::string>{program.path} : program.args;
  process.environment = environment_of_hooks(context);
  process.environment.insert(process.environment.end(), program.env.begin(), program.env.end());
  process.input = state.str();
  process.limit = program.limit;
  SPC_TRY(run_site_program(hook, process, log));
  return {};
}

Result<std::unique_ptr<StepHook>> OciHook::make(const HookFile& file, HookDescription description,
                                                uid_t owner) {
  auto hook = std::make_unique<OciHook>(file.stem, file.path, std::move(description));
  const auto& stages = hook->description_.stages;
  const bool inside_alone = std::all_of(
      stages.begin(), stages.end(), [](const auto& stage) { return stage == "startContainer"; });
  if (!inside_alone)
    SPC_TRY_DURING(in_quotes(file.path),
                   open_trusted_file(hook->description_.path, "program of a hook", owner));
  return std::unique_ptr<StepHook>(std::move(hook));
}

bool OciHook::has_stage(std::string_view stage) const {
  return std::find(description_.stages.begin(), description_.stages.end(), stage) !=
         description_.stages.end();
}

bool OciHook::has_stop() const { return has_stage("poststop"); }

Result<void> OciHook::run(std::string_view status, const std::string& root,
                          const HookContext& context, Log& log) const {
  const OciProgram program{description_.path, description_.args, description_.env,
                           description_.timeout.value_or(time_limit_of_hooks(context))};
  return run_oci_hook(name(), program, status, root, context, log);
}

Result<void> OciHook::create_on_host(const HookContext& context, const Edits&, Log& log) {
  // The container's root, as soon as this process has entered it.
  const std::string root = "/proc/" + std::to_string(::getpid()) + "/root";
  for (const char* stage : {"prestart", "createRuntime", "createContainer"}) {
    if (has_stage(stage)) SPC_TRY_DURING(stage, run("creating", root, context, log));
  }
  return {};
}

Result<void> OciHook::start(const HookContext& context, Log& log) {
  return has_stage("startContainer") ? run("created", "/", context, log) : Result<void>();
}

Result<void> OciHook::stop(const HookContext& context, Log& log) {
  return has_stop() ? run("stopped", "/", context, log) : Result<void>();
}

}  // namespace spc
