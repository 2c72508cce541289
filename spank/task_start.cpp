#include "task_start.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace spank_container {
namespace {

constexpr size_t kMostSaid = 1 << 20;

// --- task process ---

/// Restores default signal actions. slurmstepd 24.11 and later catches these signals, and so does
/// its fork until it executes the task's program: a scancel during the pull would be lost.
void let_signals_end_the_task() {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN)
      ::signal(number, SIG_DFL);
  }
}

/// Renames the process. proctrack/linuxproc signals only processes not named like slurmstepd: a
/// scancel during the pull would end the agent and not the task.
void be_a_task_to_linuxproc() {
  const auto is_linuxproc = [](dl_phdr_info* library, std::size_t, void*) {
    return std::string_view(library->dlpi_name).ends_with("/proctrack_linuxproc.so") ? 1 : 0;
  };
  if (::dl_iterate_phdr(is_linuxproc, nullptr) != 0) ::prctl(PR_SET_NAME, "container-task");
}

void set_variable(const char* name, const char* value, void* spank) {
  spank_setenv(static_cast<spank_t>(spank), name, value, 1);
}
void unset_variable(const char* name, void* spank) {
  spank_unsetenv(static_cast<spank_t>(spank), name);
}

/// Runs in the leader's process, for the node's task that started it.
void speak_for_node(int first, void*) { state.tells_progress = first != 0 && state.node == 0; }

// --- site's TaskProlog on the host ---

/// In the child, which has its own environment. Calls only functions that are allowed between fork
/// and exec.
[[noreturn]] void execute(const char* path, const char* const* environment, int output) {
  ::setpgid(0, 0);
  if (::dup2(output, STDOUT_FILENO) < 0 || ::close_range(3, ~0U, 0) != 0) ::_exit(127);
  const char* const arguments[] = {path, nullptr};
  ::execve(path, const_cast<char* const*>(arguments), const_cast<char* const*>(environment));
  ::_exit(127);
}

std::string read_all(int pipe) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(pipe, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    if (text.size() < kMostSaid) text.append(buffer, static_cast<size_t>(got));
  }
}

/// Points slurmstepd's descriptor, through which Slurm will start a user's --task-prolog inside the
/// container, to `container-helper`.
void replace_slurms_launcher() {
  struct stat ours {};
  DIR* const descriptors = ::opendir("/proc/self/fd");
  const int launcher = ::open(spc_launcher_path(), O_PATH | O_CLOEXEC);
  if (descriptors != nullptr && launcher >= 0 && ::stat("/proc/self/exe", &ours) == 0) {
    while (const dirent* entry = ::readdir(descriptors)) {
      const int found = std::atoi(entry->d_name);
      struct stat status {};
      if (found <= STDERR_FILENO || ::fstat(found, &status) != 0) continue;
      if (status.st_dev != ours.st_dev || status.st_ino != ours.st_ino ||
          (::fcntl(found, F_GETFL) & O_PATH) == 0)
        continue;
      ::dup3(launcher, found, O_CLOEXEC);
    }
  }
  if (launcher >= 0) ::close(launcher);
  if (descriptors != nullptr) ::closedir(descriptors);
}

TaskStarted outcome;

/// Runs TaskProlog on the host and keeps its output unread, for the task in the container.
void run_prolog(void* spank) {
  char** variables = nullptr;
  if (SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)) replace_slurms_launcher();
  if (&slurm_conf == nullptr || slurm_conf.task_prolog == nullptr) return;
  const int flags = spc_task_flags(state.runtime);
  if (flags < 0 || (flags & SPC_FLAG_TASK_PROLOG_ON_HOST) == 0) return;
  if (spank_get_item(static_cast<spank_t>(spank), S_JOB_ENV, &variables) != ESPANK_SUCCESS) return;
  const char* const path = slurm_conf.task_prolog;
  slurm_conf.task_prolog = nullptr;  // only in this process: slurmstepd's copy is unchanged

  std::vector<const char*> environment;
  for (; *variables != nullptr; ++variables) {
    const auto starts = [variable = *variables](std::string_view text) {
      return std::string_view(variable).starts_with(text);
    };
    // Remove the variables between srun and its tasks: spank/across_nodes.cpp.
    const bool is_ours =
        starts("SLURM_SCONTAINER_") || starts("SLURM_RLIMIT_RSS=") || starts("SLURM_RLIMIT_AS=");
    if (!is_ours && !starts("SLURM_SCRIPT_CONTEXT=")) environment.push_back(*variables);
  }
  environment.push_back("SLURM_SCRIPT_CONTEXT=prolog_task");
  environment.push_back(nullptr);
  int ends[2];
  outcome.prolog_status = 1;
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const pid_t child = ::fork();
  if (child == 0) execute(path, environment.data(), ends[1]);
  ::close(ends[1]);
  if (child > 0) outcome.prolog_said = read_all(ends[0]);
  ::close(ends[0]);
  if (child < 0) return;
  int status = 0;
  pid_t ended = 0;
  do ended = ::waitpid(child, &status, 0);
  while (ended < 0 && errno == EINTR);
  if (ended == child && WIFEXITED(status)) outcome.prolog_status = WEXITSTATUS(status);
}

}  // namespace

const TaskStarted& start_task(spank_t spank, spc_environment environment) {
  spank_get_item(spank, S_TASK_ID, &state.task);
  spank_get_item(spank, S_JOB_NODEID, &state.node);
  state.tells_progress = state.is_first() && state.node == 0;
  let_signals_end_the_task();
  be_a_task_to_linuxproc();
  if (state.runtime == nullptr || !state.step_error.empty()) {
    spc_task_stay_outside(state.runtime);
    return outcome;
  }
  static const char* const no_variables[] = {nullptr};
  char** variables = nullptr;
  const bool has_variables = spank_get_item(spank, S_JOB_ENV, &variables) == ESPANK_SUCCESS;
  environment.size = sizeof environment;
  environment.variables = has_variables ? variables : no_variables;
  environment.set = set_variable;
  environment.unset = unset_variable;
  environment.arg = spank;
  environment.before_entering = run_prolog;
  environment.before_leading = speak_for_node;
  outcome.code = spc_task_enter(state.runtime, nullptr, &environment);
  return outcome;
}

}  // namespace spank_container
