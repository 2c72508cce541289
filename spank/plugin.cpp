// spank_container.so: the only part that depends on Slurm. It collects the user's options and calls
// the runtime library in the callbacks that the design and Slurm's behaviour allow:
//
//   init                   registers the options; in slurmd, sets the node up. Never fails for a
//                          cause that a user controls: a failing init drains the node
//   init_post_opt          in srun, sbatch and salloc: refuses early; in slurmstepd: creates the
//                          tasks' channel
//   local_user_init        in srun: passes the resolved image tag to the nodes and listens for
//                          their errors
//   user_init              starts the agent in the step's device and memory cgroup. A failure here
//                          would mean exit code 0 or a drained node, so it is recorded
//   task_init_privileged   keeps the capabilities that entering needs
//   task_init              enters, after the site's TaskProlog if config.toml says so, and reports
//                          the recorded errors of all other callbacks: only here an error ends the
//                          task with exit code 1 without further damage, and waiting has no time
//                          limit
//   task_exit              after the last task: waits while the container is saved, then ends the
//                          agent, because Slurm removes the step's cgroups next
//   exit                   ends the agent of a step whose tasks never started
//   job_epilog             removes the job's own containers and releases its layers. Never fails:
//                          that would drain the node
#include "spank/user_side.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <string_view>

namespace spank_container {

const char* prefix() {
  const char* known = spc_message_prefix(state.runtime);
  return known == std::string_view(kPrefix) ? state.prefix : known;
}

bool has_peer() {
  char** names = nullptr;
  const size_t count = &spank_get_plugin_names == nullptr ? 0 : spank_get_plugin_names(&names);
  return std::any_of(names, names + count, [](std::string_view name) { return name == peer(); });
}

}  // namespace spank_container

namespace {

using namespace spank_container;

/// The runtime library's log (spc_log_fn): prints lines for the waiting user. Also used in
/// slurmstepd while a container is saved.
void tell_user(int level, const char* line, void*) {
  // to slurmd's log only, not to a terminal
  if (level == SPC_LOG_RECORD) return slurm_info("%s%s", prefix(), line);
  const bool is_for_us = level == SPC_LOG_NOTICE ? state.is_first() : state.tells_progress;
  if (!is_for_us || (level == SPC_LOG_DEBUG && !state.verbose)) return;
  // Lines relayed by slurmstepd already have its prefix.
  slurm_spank_log("%s%s%s", state.ended != 0 ? "" : prefix(),
                  level == SPC_LOG_WARNING ? "warning: " : "", line);
}

int on_option(int row, const char* value, int /*remote*/) {
  state.given.push_back({static_cast<size_t>(row), value != nullptr ? value : ""});
  return 0;
}

int register_options(spank_t spank) {
  spc_option known{.size = sizeof known};
  for (int row = 0; spc_option_at(static_cast<size_t>(row), &known) == SPC_OK; ++row) {
    char* const texts[] = {const_cast<char*>(known.name), const_cast<char*>(known.argument),
                           const_cast<char*>(known.help)};
    spank_option option{texts[0], texts[1], texts[2], known.has_argument, row, on_option};
    if (spank_option_register(spank, &option) == ESPANK_SUCCESS) continue;
    slurm_error("%scannot register option --%s", kPrefix, known.name);
    return -1;
  }
  return 0;
}

/// Returns whether one of the variables is set in the job's environment.
bool is_set(spank_t spank, std::span<const char* const> variables) {
  char probe[1];  // too small for any value: ESPANK_NOSPACE means that the variable exists
  const auto get = [&](auto* name) { return spank_getenv(spank, name, probe, sizeof probe); };
  return std::ranges::any_of(variables,
                             [&](auto* name) { return get(name) != ESPANK_ENV_NOEXIST; });
}

/// Returns whether the step has a container: all that root needs from the options. Slurm's own
/// steps (extern) have none. If a node has the plugin under both names, the one that received the
/// options starts the container. If both or neither received them, spank_container does.
bool wants_container(spank_t spank) {
  uint32_t step = SLURM_EXTERN_CONT;
  spank_get_item(spank, S_JOB_STEPID, &step);
  if (step == SLURM_EXTERN_CONT) return false;
  const auto means_one = [](const GivenOption& given) { return given.row < kRequestRows; };
  const auto keeps = [&](bool p) {
    return step == SLURM_BATCH_SCRIPT && is_set(spank, kKeptOf[p]);
  };
  const bool given = std::ranges::any_of(state.given, means_one) || keeps(is_pyxis());
  const bool is_peers = state.is_peer_asked || keeps(!is_pyxis());
  if ((is_pyxis() ? is_peers || !given : is_peers && !given) && has_peer()) return false;
  if (!given && is_peers) state.step_error = kPeerIsMissing[is_pyxis()];
  return state.step_error.empty() && (given || is_set(spank, kContainerVariables));
}

/// Records a failure of the step's agent; task_init reports it to the user.
void keep_error(int rc) {
  if (rc != SPC_OK) state.step_error = spc_error_message(state.runtime);
}

/// Calls the library in slurmd. Writes a failure to slurmd's log, without any other effect: a
/// failing callback would drain the node.
template <typename Call>
int on_node(const Call& call) {
  spc_runtime* runtime = nullptr;
  if (spc_open(nullptr, nullptr, &runtime) == SPC_OK && call(runtime) != SPC_OK)
    slurm_error("%s%s", kPrefix, spc_error_message(runtime));
  spc_close(runtime);
  return 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int slurm_spank_init(spank_t spank, int argc, char** argv) {
  state.settings.assign(argv, argv + argc);
  // slurmstepd also prints messages to the user, and uses no other of these settings.
  if (std::find(argv, argv + argc, std::string_view("messages=pyxis")) != argv + argc)
    state.prefix = "pyxis: ";
  if (spank_context() == S_CTX_REMOTE) state.is_peer_asked = is_set(spank, kAskedOf[!is_pyxis()]);
  switch (spank_context()) {
    case S_CTX_ALLOCATOR:
    case S_CTX_LOCAL: return has_options() ? register_options(spank) : 0;
    case S_CTX_REMOTE: return register_options(spank);
    case S_CTX_SLURMD: return on_node(spc_node_setup);
    default: return 0;
  }
}

int slurm_spank_init_post_opt(spank_t spank, int, char**) {
  const auto context = spank_context();
  if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR) return refuse_early(spank);
  if (context != S_CTX_REMOTE || !wants_container(spank)) return 0;
  void* const shared = ::mmap(nullptr, sizeof *state.told, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared != MAP_FAILED) state.told = static_cast<NodeState*>(shared);
  const bool is_open = spc_open(tell_user, nullptr, &state.runtime) == SPC_OK;
  if (!is_open) state.step_error = "out of memory";
  if (is_open) keep_error(spc_step_open(state.runtime));
  return 0;
}

int slurm_spank_user_init(spank_t spank, int, char**) {
  if (state.runtime == nullptr || !state.step_error.empty()) return 0;
  spc_step step{.size = sizeof step};
  const bool is_known = spank_get_item(spank, S_JOB_UID, &step.uid) == ESPANK_SUCCESS &&
                        spank_get_item(spank, S_JOB_GID, &step.gid) == ESPANK_SUCCESS &&
                        spank_get_item(spank, S_JOB_ID, &step.job_id) == ESPANK_SUCCESS &&
                        spank_get_item(spank, S_JOB_STEPID, &step.step_id) == ESPANK_SUCCESS;
  if (!is_known) state.step_error = "Slurm does not provide the job's user";
  if (is_known) keep_error(spc_step_start(state.runtime, &step));
  return 0;
}

int slurm_spank_task_init_privileged(spank_t, int, char**) {
  if (state.runtime != nullptr) spc_task_keep_privilege(state.runtime);
  return 0;
}

int slurm_spank_task_init(spank_t spank, int, char**) {
  if (state.runtime == nullptr && state.step_error.empty()) return 0;
  spc_task_begin();
  enter_or_end_task(spank);
  return 0;
}

int slurm_spank_local_user_init(spank_t spank, int, char**) { return collect_errors(spank); }

int slurm_spank_task_exit(spank_t spank, int, char**) {
  uint32_t tasks = 0;
  int status = 0;
  spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks);
  spank_get_item(spank, S_TASK_EXIT_STATUS, &status);
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;
  if (signal == SIGTERM || signal == SIGKILL) ++state.killed;
  if (status != 0) ++state.failed;
  if (++state.ended != tasks || state.runtime == nullptr) return 0;
  state.tells_progress = true;
  if (spc_step_finish(state.runtime, tasks, state.killed, state.failed) != SPC_OK) {
    slurm_spank_log("%s%s", state.prefix, spc_error_message(state.runtime));
  }
  return 0;
}

int slurm_spank_exit(spank_t, int, char**) {
  if (spank_context() == S_CTX_LOCAL) stop_collecting();
  spc_close(state.runtime);  // the last callback
  return 0;
}

int slurm_spank_job_epilog(spank_t spank, int, char**) {
  uid_t uid = 0;
  uint32_t job = 0;
  if (spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
    return 0;
  return on_node([&](spc_runtime* runtime) { return spc_job_epilog(runtime, uid, job); });
}

/// Slurm 20.11 calls init in slurmd only for plugins that define this function.
int slurm_spank_slurmd_exit(spank_t, int, char**) { return 0; }

}  // extern "C"
#pragma GCC visibility pop
