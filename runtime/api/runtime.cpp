#include "spank_container/runtime.h"

#include <cxxabi.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/used_features.hpp"
#include "image/reference/location.hpp"
#include "launch/host/namespaces.hpp"
#include "launch/launch.hpp"
#include "launch/policy/site.hpp"
#include "launch/request/device_names.hpp"
#include "launch/request/save_path.hpp"
#include "launch/site/submit_check.hpp"
#include "task/enter.hpp"
#include "task/granted_devices.hpp"
#include "task/step_agent.hpp"

using namespace spc;

struct spc_runtime {
  spc_log_fn log = nullptr;
  void* log_arg = nullptr;
  std::string error;
  StepChannel channel;
  StepAgent agent;
  std::vector<std::string> settings;  ///< that plugstack.conf overrides
  MessageStyle style = MessageStyle::own;
  std::optional<std::set<std::string>> granted;  ///< GPUs' nodes that the step may open
  pid_t opened_by = 0;                           ///< the process that will fork the tasks
};

namespace {

constexpr char kServiceUser[] = "spank-container";

/// The codes of the C API count down in the order of ErrorKind.
constexpr int code_of(ErrorKind kind) { return -1 - static_cast<int>(kind); }
static_assert(code_of(ErrorKind::invalid) == SPC_E_INVALID && code_of(ErrorKind::corrupt) == SPC_E_CORRUPT);
static_assert(code_of(ErrorKind::internal) == SPC_E_INTERNAL);

/// Every function of the C API runs its body in here: no exception leaves it, and a failure leaves its text in the handle.
template <typename Body>
int guard(spc_runtime* rt, const Body& body) noexcept(false) {
  if (rt == nullptr) return SPC_E_INVALID;
  try {
    Result<void> done = body();
    if (done) return SPC_OK;
    rt->error = done.error().message();
    return code_of(done.error().kind());
  } catch (abi::__forced_unwind&) {  // cancellation of the thread; swallowing it aborts
    throw;
  } catch (const std::bad_alloc&) {
    return SPC_E_NO_SPACE;
  } catch (const std::exception& exception) {
    rt->error = exception.what();
    return SPC_E_INTERNAL;
  } catch (...) {
    return SPC_E_INTERNAL;
  }
}

/// Reads a caller's struct of any earlier or later version: what he does not know stays at `known`'s default.
template <typename Struct>
Result<Struct> adopt(const Struct* given, Struct known) {
  if (given == nullptr || given->size < sizeof(size_t)) return Error(ErrorKind::invalid, "missing argument");
  std::memcpy(&known, given, std::min(given->size, sizeof known));
  known.size = sizeof known;
  return known;
}

class CallbackLog final : public Log {
 public:
  explicit CallbackLog(const spc_runtime& rt) : rt_(rt) {}
  void write(LogLevel level, std::string_view line) noexcept override {
    if (rt_.log != nullptr) rt_.log(static_cast<int>(level), std::string(line).c_str(), rt_.log_arg);
  }

 private:
  const spc_runtime& rt_;
};

std::optional<bool> tristate(int value) { return value == SPC_UNSET ? std::nullopt : std::optional(value != SPC_NO); }

Result<LaunchRequest> parse_options(const spc_options* given) {
  const auto options = SPC_TRY(adopt(given, spc_options{.size = 0,
                                                        .image = nullptr,
                                                        .mounts = nullptr,
                                                        .workdir = nullptr,
                                                        .env = nullptr,
                                                        .writable = SPC_UNSET,
                                                        .mount_home = SPC_UNSET,
                                                        .batch_script = nullptr,
                                                        .pull = nullptr,
                                                        .platform = nullptr,
                                                        .verbose = 0,
                                                        .name = nullptr,
                                                        .save = nullptr,
                                                        .unshare = nullptr,
                                                        .tmpfs_size = nullptr,
                                                        .command = nullptr,
                                                        .remap_root = SPC_UNSET,
                                                        .entrypoint = SPC_UNSET,
                                                        .entrypoint_log = SPC_UNSET,
                                                        .contain = SPC_UNSET,
                                                        .private_layer = SPC_UNSET,
                                                        .slurm = SPC_UNSET,
                                                        .explain = SPC_UNSET,
                                                        .batch = nullptr,
                                                        .gpu = SPC_UNSET,
                                                        .devices = nullptr,
                                                        .mpi = nullptr}));
  LaunchRequest request;
  if (options.name != nullptr) request.name = SPC_TRY(ContainerName::parse(options.name));
  if (options.image != nullptr) request.image = options.image;
  if (!request.image.empty()) {
    SPC_TRY_DURING("--container-image", ImageLocation::parse(request.image));
  } else if (!request.name) {
    return Error(ErrorKind::invalid, "--container-image: argument required");
  }
  request.features = used_features(options);
  for (auto mount = options.mounts; mount != nullptr && *mount != nullptr; ++mount) {
    for (auto& spec : SPC_TRY(parse_mounts(*mount))) {
      if (std::find(request.mounts.begin(), request.mounts.end(), spec) == request.mounts.end())
        request.mounts.push_back(std::move(spec));
    }
    if (request.mounts.size() > kMaxMounts) return too_many_mounts();
  }
  if (options.workdir != nullptr) {
    request.workdir = options.workdir;
    if (request.workdir.empty()) return Error(ErrorKind::invalid, "--container-workdir: argument required");
  }
  for (auto list = options.env; list != nullptr && *list != nullptr; ++list) {
    SPC_TRY_DURING("--container-env", request.environment.add(*list));
  }
  if (options.pull != nullptr) {
    request.pull = parse_pull_policy(options.pull);
    if (!request.pull) {
      return Error(ErrorKind::invalid, "--container-pull: " + in_quotes(options.pull) + " is not allowed").hint(kPullPolicies);
    }
  }
  if (options.platform != nullptr) request.platform = SPC_TRY_DURING("--container-platform", Platform::parse(options.platform));
  request.writable = tristate(options.writable);
  request.mount_home = tristate(options.mount_home);
  for (auto list = options.unshare; list != nullptr && *list != nullptr; ++list) {
    request.namespaces |= SPC_TRY(parse_namespaces(*list));
  }
  request.verbose = options.verbose == SPC_YES;
  request.remap_root = tristate(options.remap_root);
  request.entrypoint = tristate(options.entrypoint);
  request.entrypoint_log = options.entrypoint_log == SPC_YES;
  request.contain = options.contain == SPC_YES;
  if (request.contain && request.mount_home.value_or(false)) {
    return Error(ErrorKind::invalid, "--container-contain and --container-mount-home cannot be combined");
  }
  if (options.tmpfs_size != nullptr) {
    request.tmpfs_size = SPC_TRY_DURING("--container-tmpfs-size", MemorySize::parse(options.tmpfs_size));
  }
  request.private_layer = options.private_layer == SPC_YES;
  request.slurm = tristate(options.slurm);
  if (request.slurm.value_or(false) && request.remap_root.value_or(false)) {
    return Error(ErrorKind::invalid, "--container-slurm and --container-remap-root cannot be combined")
        .hint("Slurm would see root, munge the user");
  }
  request.explain = options.explain == SPC_YES;
  if (options.save != nullptr) {
    request.save = options.save;
    SPC_TRY_DURING("--container-save", check_save_path(request.save));
  }
  const bool has_name = options.name != nullptr && *options.name != '\0';
  if (request.private_layer && (has_name || !request.save.empty())) {
    return Error(ErrorKind::invalid, std::string("--container-private and --container-") + (has_name ? "name" : "save") +
                                         " cannot be combined: each task has its own container");
  }
  for (auto word = options.command; word != nullptr && *word != nullptr; ++word) request.command.emplace_back(*word);
  if (options.batch != nullptr) request.batch = options.batch;
  if (!request.batch.empty() && request.batch != "script" && request.batch != "steps") {
    return Error(ErrorKind::invalid, "--container-batch: " + in_quotes(request.batch) + " is not allowed")
        .hint("script or steps");
  }
  request.gpu = tristate(options.gpu);
  for (auto list = options.devices; list != nullptr && *list != nullptr; ++list) {
    SPC_TRY_DURING("--container-device", add_device_names(request.devices, *list));
  }
  if (options.mpi != nullptr) request.mpi = options.mpi;
  if (!request.mpi.empty() && request.mpi != "image" && request.mpi != "host") {
    return Error(ErrorKind::invalid, "--container-mpi: " + in_quotes(options.mpi) + " is not allowed").hint("image or host");
  }
  if (options.batch_script != nullptr) request.batch_script = options.batch_script;
  if (request.explain) request.save.clear();  // nothing will have been run
  return request;
}

}  // namespace

int spc_open(spc_log_fn log, void* arg, spc_runtime** out) {
  if (out == nullptr) return SPC_E_INVALID;
  *out = new (std::nothrow) spc_runtime;
  if (*out == nullptr) return SPC_E_NO_SPACE;
  (*out)->log = log;
  (*out)->log_arg = arg;
  return SPC_OK;
}

void spc_close(spc_runtime* rt) {
  if (rt == nullptr) return;
  rt->channel = StepChannel();
  if (rt->opened_by == ::getpid()) rt->agent.stop();
  delete rt;
}

const char* spc_error_message(const spc_runtime* rt) { return rt == nullptr ? "no handle" : rt->error.c_str(); }

int spc_configure(spc_runtime* rt, const char* const* settings) {
  return guard(rt, [&]() -> Result<void> {
    rt->settings.clear();
    for (; settings != nullptr && *settings != nullptr; ++settings) rt->settings.emplace_back(*settings);
    Site site = Site::read();
    site.override_with(rt->settings);
    rt->style = message_style(site);
    return {};
  });
}

const char* spc_message_prefix(const spc_runtime* rt) { return message_prefix(rt == nullptr ? MessageStyle::own : rt->style); }

int spc_check(spc_runtime* rt, const spc_options* options) {
  return guard(rt, [&]() -> Result<void> {
    SPC_TRY(parse_options(options));
    return {};
  });
}

int spc_check_site(spc_runtime* rt, const spc_options* options) {
  return guard(rt, [&]() -> Result<void> { return check_at_submission(SPC_TRY(parse_options(options))); });
}

int spc_node_setup(spc_runtime* rt) {
  return guard(rt, [&]() -> Result<void> {
    std::vector<char> buffer(16 * 1024);
    passwd entry{};
    passwd* service = nullptr;
    ::getpwnam_r(kServiceUser, &entry, buffer.data(), buffer.size(), &service);
    if (service == nullptr || service->pw_uid == 0) {
      return Error(ErrorKind::not_found, std::string("set up the node: no user ") + in_quotes(kServiceUser))
          .hint("create it: useradd --system --no-create-home --shell /usr/sbin/nologin spank-container");
    }
    return set_up_node_for(service->pw_uid, service->pw_gid);
  });
}

int spc_job_epilog(spc_runtime* rt, uid_t uid, uint32_t job_id) {
  return guard(rt, [&]() -> Result<void> { return clean_up_after_job(uid, job_id); });
}

int spc_step_open(spc_runtime* rt) {
  return guard(rt, [&]() -> Result<void> {
    rt->channel = SPC_TRY(StepChannel::open());
    rt->opened_by = ::getpid();
    return {};
  });
}

int spc_step_start(spc_runtime* rt, const spc_step* given) {
  return guard(rt, [&]() -> Result<void> {
    const auto step = SPC_TRY(adopt(given, spc_step{}));
    if (!rt->channel.parked_agent) return Error(ErrorKind::internal, "start the agent: the step has no channel");
    rt->agent = SPC_TRY(
        StepAgent::start(std::move(rt->channel.parked_agent), {step.uid, step.gid, step.job_id, step.step_id}, rt->opened_by));
    rt->granted = granted_gpu_nodes();
    return {};
  });
}

int spc_task_keep_privilege(spc_runtime* rt) {
  return guard(rt, [&]() -> Result<void> {
    keep_privilege_to_enter();
    return {};
  });
}

int spc_task_enter(spc_runtime* rt, const spc_options* options, const spc_environment* given) {
  const int entered = guard(rt, [&]() -> Result<void> {
    const auto environment = SPC_TRY(adopt(given, spc_environment{}));
    auto request = SPC_TRY(parse_options(options));
    request.style = &rt->style;
    request.overrides = rt->settings;
    request.granted_devices = rt->granted;
    if (!rt->channel.tasks) return Error(ErrorKind::internal, "enter the container: the step has no channel");
    CallbackLog log(*rt);
    std::function<void()> before;
    if (environment.before_entering != nullptr && !request.explain)
      before = [&] { environment.before_entering(environment.arg); };
    const auto entry = SPC_TRY(launch(request, as_map(environment.variables), rt->channel, log, before));
    if (entry.explained) ::_exit(0);
    for (const auto& name : entry.environment.unset) environment.unset(name.c_str(), environment.arg);
    for (const auto& [name, value] : entry.environment.set) environment.set(name.c_str(), value.c_str(), environment.arg);
    if (!entry.timing.empty()) log.write(LogLevel::debug, entry.timing);
    return {};
  });
  if (entered != SPC_OK) [[maybe_unused]]
    const auto without = give_up_privilege();
  return entered;
}

int spc_task_stay_outside(spc_runtime* rt) {
  return guard(rt, [&]() -> Result<void> { return stay_outside(); });
}

int spc_step_finish(spc_runtime* rt, uint32_t tasks, uint32_t killed) {
  return guard(rt, [&]() -> Result<void> {
    return rt->channel.finish(tasks, killed, [&](const char* line) {
      if (rt->log != nullptr) rt->log(SPC_LOG_INFO, line, rt->log_arg);
    });
  });
}

int spc_site_flag(const char* key, int otherwise) {
  try {
    return key == nullptr ? otherwise : static_cast<int>(Site::read().flag(key, otherwise != 0));
  } catch (const std::exception&) {  // out of memory
    return otherwise;
  }
}

const char* spc_version(void) { return SPC_VERSION; }
