// spank_container.so: the only part that depends on Slurm. It collects what the user asked for, and calls the runtime
// library in the callbacks that design and Slurm's behaviour allow:
//
//   init                   registers the options; in slurmd, sets the node up. Never fails for what a user can cause:
//                          a failing init drains the node
//   init_post_opt          in srun, sbatch and salloc: refuses early; in slurmstepd: makes the tasks' channel
//   user_init              starts the agent: in the step's device and memory cgroup. A failure here would be exit code 0
//                          or a drained node, so it is remembered
//   task_init_privileged   keeps what entering needs
//   task_init              enters, and reports every error of all the others: here alone an error ends the task with
//                          exit code 1 and nothing worse, and waiting is not limited in time
//   exit                   kills the agent
#include <sys/types.h>
#include <stddef.h>
#include <stdint.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
extern "C" {
#include <slurm/spank.h>  // does not say it is C
}
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "options.hpp"
#include "spank_container/runtime.h"

#pragma GCC visibility push(default)
extern "C" {
// Constants would be invisible outside of a C++ file unless they are declared first.
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(spank_container, 1)
}
#pragma GCC visibility pop

namespace {

using spank_container::Options;
using spank_container::OptionRow;

/// What one process (srun, sbatch, slurmd, slurmstepd, a task) keeps between callbacks.
struct State {
  Options options;
  std::string option_error;  ///< the first one
  std::string step_error;    ///< why there is no agent; told to the user from task_init
  spc_runtime* runtime = nullptr;
  bool speaks = false;       ///< this task tells the user about progress
  bool reports = false;      ///< this task tells the user about errors
};
State state;

constexpr char kPrefix[] = "spank-container: ";

void say(int level, const char* line, void*) {
  if (!state.speaks || (level == SPC_LOG_DEBUG && !state.options.verbose)) return;
  slurm_spank_log("%s%s%s", kPrefix, level == SPC_LOG_WARNING ? "warning: " : "", line);
}

int on_option(int index, const char* value, int /*remote*/) {
  const OptionRow& row = spank_container::option_table()[static_cast<size_t>(index)];
  const std::string refused = row.apply(state.options, value == nullptr ? "" : value);
  if (refused.empty()) return 0;
  if (state.option_error.empty()) state.option_error = refused;
  return 0;  // told in init_post_opt (before submission) or task_init: a failure here names no reason
}

int register_options(spank_t spank) {
  int index = 0;
  for (const OptionRow& row : spank_container::option_table()) {
    spank_option option{};
    option.name = const_cast<char*>(row.name);
    option.arginfo = const_cast<char*>(row.argument);
    option.usage = const_cast<char*>(row.help);
    option.has_arg = row.argument != nullptr ? 1 : 0;
    option.val = index++;
    option.cb = on_option;
    if (spank_option_register(spank, &option) != ESPANK_SUCCESS) {
      slurm_error("%scannot register option --%s", kPrefix, row.name);
      return -1;
    }
  }
  return 0;
}

bool from_process(const char* name, std::string& value, void*) {
  const char* found = ::getenv(name);
  if (found != nullptr) value = found;
  return found != nullptr;
}

/// The job's environment, which is not slurmstepd's.
bool from_job(const char* name, std::string& value, void* spank) {
  std::vector<char> buffer(64 * 1024);
  if (spank_getenv(static_cast<spank_t>(spank), name, buffer.data(), static_cast<int>(buffer.size())) != ESPANK_SUCCESS) return false;
  value = buffer.data();
  return true;
}

void collect_twins(bool (*get)(const char*, std::string&, void*), void* arg) {
  const std::string refused = spank_container::apply_twins(state.options, get, arg);
  if (state.option_error.empty()) state.option_error = refused;
}

bool wants_container() { return !state.options.image.empty() || !state.option_error.empty(); }

uint32_t step_id(spank_t spank) {
  uint32_t step = 0;
  return spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS ? step : SLURM_EXTERN_CONT;
}

std::vector<const char*> as_vector(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const auto& text : texts) pointers.push_back(text.c_str());
  pointers.push_back(nullptr);
  return pointers;
}

/// Calls `use` with the options as the library takes them; they are borrowed for that call.
template <typename Use>
int with_options(const char* batch_script, const Use& use) {
  const auto mounts = as_vector(state.options.mounts);
  const auto env = as_vector(state.options.env);
  spc_options options{};
  options.size = sizeof options;
  options.image = state.options.image.c_str();
  options.mounts = mounts.data();
  options.workdir = state.options.workdir.empty() ? nullptr : state.options.workdir.c_str();
  options.env = env.data();
  options.writable = state.options.writable;
  options.mount_home = state.options.mount_home;
  options.batch_script = batch_script;
  return use(options);
}

/// In srun, sbatch and salloc: what can be known to be wrong is refused before anything is submitted.
int check_early() {
  collect_twins(from_process, nullptr);
  std::string refused = state.option_error;
  if (refused.empty() && !state.options.image.empty()) {
    spc_runtime* runtime = nullptr;
    if (spc_open(nullptr, nullptr, &runtime) != SPC_OK) return -1;
    if (with_options(nullptr, [&](const spc_options& options) { return spc_check(runtime, &options); }) != SPC_OK) {
      refused = spc_error_message(runtime);
    }
    spc_close(runtime);
  }
  if (refused.empty()) return 0;
  slurm_error("%s%s", kPrefix, refused.c_str());
  return -1;
}

/// Ends the task with exit code 1. Returning a failure would do the same, but Slurm then adds two lines about the plugin
/// stack for every task.
[[noreturn]] void refuse_task(const char* why) {
  if (state.reports) slurm_spank_log("%s%s", kPrefix, why);
  ::_exit(1);
}

/// slurmstepd of 24.11 and later catches these, and so does its fork until it executes the task's program: a scancel during
/// the pull would be lost.
void let_signals_end_the_task() {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) ::signal(number, SIG_DFL);
  }
}

void set_variable(const char* name, const char* value, void* spank) { spank_setenv(static_cast<spank_t>(spank), name, value, 1); }
void unset_variable(const char* name, void* spank) { spank_unsetenv(static_cast<spank_t>(spank), name); }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int slurm_spank_init(spank_t spank, int argc, char** argv) {
  if (argc > 0) {
    slurm_error("%splugstack.conf: unknown argument \"%s\": settings belong into config.toml", kPrefix, argv[0]);
    return -1;
  }
  switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
    case S_CTX_REMOTE:
      return register_options(spank);
    case S_CTX_SLURMD: {
      spc_runtime* runtime = nullptr;
      if (spc_open(nullptr, nullptr, &runtime) != SPC_OK) return 0;
      if (spc_node_setup(runtime) != SPC_OK) slurm_error("%s%s", kPrefix, spc_error_message(runtime));
      spc_close(runtime);
      return 0;
    }
    default:
      return 0;
  }
}

int slurm_spank_init_post_opt(spank_t spank, int, char**) {
  const auto context = spank_context();
  if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR) return check_early();
  if (context != S_CTX_REMOTE || step_id(spank) == SLURM_EXTERN_CONT) return 0;
  collect_twins(from_job, spank);
  if (!wants_container()) return 0;
  if (spc_open(say, nullptr, &state.runtime) != SPC_OK) {
    state.step_error = "out of memory";
  } else if (spc_step_open(state.runtime) != SPC_OK) {
    state.step_error = spc_error_message(state.runtime);
  }
  return 0;
}

int slurm_spank_user_init(spank_t spank, int, char**) {
  if (state.runtime == nullptr || !state.step_error.empty() || !state.option_error.empty()) return 0;
  spc_step step{};
  step.size = sizeof step;
  if (spank_get_item(spank, S_JOB_UID, &step.uid) != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_GID, &step.gid) != ESPANK_SUCCESS) {
    state.step_error = "Slurm does not say whose job this is";
  } else if (spc_step_start(state.runtime, &step) != SPC_OK) {
    state.step_error = spc_error_message(state.runtime);
  }
  return 0;
}

int slurm_spank_task_init_privileged(spank_t, int, char**) {
  if (state.runtime != nullptr) spc_task_keep_privilege(state.runtime);
  return 0;
}

int slurm_spank_task_init(spank_t spank, int, char**) {
  if (!wants_container() || step_id(spank) == SLURM_EXTERN_CONT) return 0;
  int task = -1;
  uint32_t node = 0;
  spank_get_item(spank, S_TASK_ID, &task);
  spank_get_item(spank, S_JOB_NODEID, &node);
  state.reports = task == 0;
  state.speaks = task == 0 && node == 0;
  let_signals_end_the_task();

  if (!state.option_error.empty()) refuse_task(state.option_error.c_str());
  if (!state.step_error.empty()) refuse_task(state.step_error.c_str());
  const char* batch_script = nullptr;
  int argc = 0;
  char** argv = nullptr;
  if (step_id(spank) == SLURM_BATCH_SCRIPT && spank_get_item(spank, S_JOB_ARGV, &argc, &argv) == ESPANK_SUCCESS && argc > 0) {
    batch_script = argv[0];
  }
  char** variables = nullptr;
  if (spank_get_item(spank, S_JOB_ENV, &variables) != ESPANK_SUCCESS) refuse_task("Slurm does not give the job's environment");
  spc_environment environment{};
  environment.size = sizeof environment;
  environment.variables = variables;
  environment.set = set_variable;
  environment.unset = unset_variable;
  environment.arg = spank;
  const int entered = with_options(batch_script, [&](const spc_options& options) {
    return spc_task_enter(state.runtime, &options, &environment);
  });
  if (entered != SPC_OK) refuse_task(spc_error_message(state.runtime));
  return 0;
}

int slurm_spank_exit(spank_t, int, char**) {
  spc_close(state.runtime);
  state.runtime = nullptr;
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
