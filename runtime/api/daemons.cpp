// C API functions that slurmd and slurmstepd call as root. None of them reads text that a user has
// written.

#include <pwd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "api/runtime.hpp"
#include "request/options.hpp"
#include "task/granted_devices.hpp"

using namespace spc;

int spc_open(spc_log_fn log, void* arg, spc_runtime** out) {
  if (out == nullptr) return SPC_E_INVALID;
  *out = new (std::nothrow) spc_runtime{.log = log, .log_arg = arg};
  return *out != nullptr ? SPC_OK : SPC_E_NO_SPACE;
}

void spc_close(spc_runtime* rt) {
  if (rt == nullptr) return;
  if (rt->opened_by == ::getpid()) (void)rt->agent.stop(rt->channel);
  (void)rt->channel.keeper.release();  // closing it would free all pages of the step's tmpfs here
  delete rt;
}

const char* spc_error_message(const spc_runtime* rt) {
  return rt == nullptr ? "no handle" : rt->error.c_str();
}

int spc_option_at(size_t number, spc_option* out) {
  const auto all = container_options();
  if (number >= all.size()) return SPC_E_NOT_FOUND;
  const ContainerOption& option = all[number];
  const spc_option known{.size = sizeof known,
                         .name = option.name,
                         .argument = option.argument,
                         .help = option.help,
                         .opposite = option.opposite,
                         .is_list = option.kind == ContainerOption::Kind::list ? 1 : 0,
                         .has_argument = option.has_argument()};
  return hand_out(known, out) ? SPC_OK : SPC_E_INVALID;
}

int spc_node_setup(spc_runtime* rt) {
  return guard(rt, [&]() -> Result<void> {
    constexpr char kServiceUser[] = "spank-container";
    std::vector<char> buffer(16 * 1024);
    passwd entry{}, *service = nullptr;
    ::getpwnam_r(kServiceUser, &entry, buffer.data(), buffer.size(), &service);
    if (service == nullptr || service->pw_uid == 0)
      return Error(ErrorKind::not_found, "set up the node: no user " + quoted(kServiceUser))
          .hint(
              "create it: useradd --system --no-create-home --shell /usr/sbin/nologin "
              "spank-container");
    return run_agent("setup", service->pw_uid, service->pw_gid, "set up the node");
  });
}

int spc_job_epilog(spc_runtime* rt, uid_t uid, uint32_t job_id) {
  return guard(rt, [&] {
    return run_agent("epilog", uid, job_id, "clean up after job " + std::to_string(job_id));
  });
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
    if (!rt->channel.parked_agent)
      return Error(ErrorKind::internal, "start the agent: the step has no channel");
    rt->agent =
        SPC_TRY(StepAgent::start(std::move(rt->channel.parked_agent),
                                 {step.uid, step.gid, step.job_id, step.step_id}, rt->opened_by));
    rt->granted = granted_gpu_nodes();
    return {};
  });
}

int spc_task_keep_privilege(spc_runtime* rt) {
  if (rt != nullptr) ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);  // if it fails, entering reports why
  return rt != nullptr ? SPC_OK : SPC_E_INVALID;
}

int spc_step_finish(spc_runtime* rt, uint32_t tasks, uint32_t killed, uint32_t failed) {
  return guard(rt, [&]() -> Result<void> {
    const auto done = rt->channel.finish(tasks, killed, failed, [&](const char* line) {
      if (rt->log != nullptr) rt->log(SPC_LOG_INFO, line, rt->log_arg);
    });
    // Stop the agent now: Slurm removes the step's cgroups before it closes the handle.
    const auto stopped = rt->agent.stop(rt->channel);
    if (!stopped && rt->log != nullptr)
      rt->log(SPC_LOG_RECORD, stopped.error().message().c_str(), rt->log_arg);
    return done;
  });
}

const char* spc_version(void) { return SPC_VERSION; }
