#include "user_side.hpp"

#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "across_nodes.hpp"
#include "given.hpp"
#include "oci_hint.hpp"
#include "submission.hpp"
#include "task_prolog.hpp"

namespace spank_container {
namespace {

/// What was asked for, as the library takes it; made in srun, and again in the task, since a user can avoid srun.
struct Request {
  std::vector<std::string> texts;
  std::vector<const char*> given;  ///< the same
  spc_options options{};           ///< borrows them
  spc_summary summary{};
  std::string refused;
  std::string partitions, constraint;

  Request(spc_runtime* runtime, std::span<const GivenOption> all, const char* const* variables, const char* batch_script,
          const char* const* command) {
    for (const GivenOption& one : all) {
      const spc_option& option = option_table()[one.row];
      texts.push_back(option.argument == nullptr ? option.name : std::string(option.name) + "=" + one.value);
    }
    for (const auto& text : texts) given.push_back(text.c_str());
    given.push_back(nullptr);
    options.size = sizeof options;
    options.given = given.data();
    options.variables = variables;
    options.batch_script = batch_script;
    options.command = command;
    summary.size = sizeof summary;
    if (spc_summarize(runtime, &options, &summary) != SPC_OK) refused = spc_error_message(runtime);
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
};

/// Whether this is what submits the job.
bool is_submission() { return spank_context() == S_CTX_ALLOCATOR || ::getenv("SLURM_JOB_ID") == nullptr; }

/// Opens whatever of 0, 1 and 2 is closed, as cron and daemons leave it: Slurm would take our
/// sockets and pipes there for the streams of the step, as it does with its own.
void open_closed_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

/// Returns whether srun can listen to its nodes and still has the descriptors that Slurm needs: it
/// crashes or waits without them. Otherwise every node reports its own errors and pulls by itself.
bool has_descriptors_for_nodes() {
  constexpr rlim_t kWanted = 64;
  rlimit limit{};
  const int lowest = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  ::close(lowest);
  return lowest >= 0 && ::getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
         limit.rlim_cur >= static_cast<rlim_t>(lowest) + kWanted;
}

/// What the job's steps have asked registries since counts for its later ones, and so does what others have.
void note_submission() {
  if (is_submission()) ::setenv(SPC_SINCE_VARIABLE, std::to_string(::time(nullptr)).c_str(), 1);
}

std::optional<SrunThatListens> srun;  ///< for this task's error; without one the task prints it itself

bool from_process(const char* name, std::string& value, void*) {
  const char* found = ::getenv(name);
  if (found != nullptr) value = found;
  return found != nullptr;
}

/// Tells the library what plugstack.conf says. Returns what is wrong with it, or an empty text.
std::string configure(spc_runtime* runtime) {
  const Settings settings = read_settings(state.settings);
  std::vector<const char*> texts;
  for (const auto& text : settings.site) texts.push_back(text.c_str());
  texts.push_back(nullptr);
  if (spc_configure(runtime, texts.data()) != SPC_OK) return spc_error_message(runtime);
  state.prefix = spc_message_prefix(runtime);  // "own" in plugstack.conf, or nothing there: as config.toml has it
  return settings.refused;
}

/// Options that do nothing without a container: said once each, and the job runs on the host as before.
void say_what_is_ignored(const std::vector<GivenOption>& given) {
  std::vector<std::string> said;
  for (const GivenOption& option : given) {
    const spc_option& row = option_table()[option.row];
    std::string name = row.name;
    if (name.starts_with("no-")) name = "[no-]" + name.substr(3);
    if (row.opposite != nullptr && row.opposite == "no-" + name) name = "[no-]" + name;
    if (std::find(said.begin(), said.end(), name) != said.end()) continue;
    said.push_back(name);
    slurm_error("%signoring --%s because neither --container-image nor --container-name is set", state.prefix, name.c_str());
  }
}

/// What the tasks of a node know of their errors, in `State::told`.
enum Told : uint32_t { not_yet = 0, first_is_in, by_one };

/// One line for each node: the first task's, whose error is mostly everybody's. Only when it has got in, or has not
/// decided within two seconds, another's.
bool is_mine_to_tell() {
  if (state.told == nullptr) return state.is_first;
  for (int ms = 0; !state.is_first && *state.told == not_yet && ms < 2000; ms += 10) ::usleep(10'000);
  return state.told->exchange(by_one) != by_one;
}

/// Unless another task has told an error of its own meanwhile.
void first_has_got_in() {
  uint32_t before = not_yet;
  if (state.told != nullptr && state.is_first) state.told->compare_exchange_strong(before, first_is_in);
}

/// What is doubtful about a request: a line for the user, and it is submitted.
void tell_warning(int level, const char* line, void*) {
  if (level == SPC_LOG_WARNING) slurm_info("%swarning: %s", state.prefix, line);
}

/// Where the job is to run. In a job, a step runs where that does.
void add_destination(Request& request) {
  const char* const of_job = spank_context() == S_CTX_LOCAL ? ::getenv("SLURM_JOB_PARTITION") : nullptr;
  request.partitions = option_of_slurm("partition");
  if (request.partitions.empty() && of_job != nullptr) request.partitions = of_job;
  request.constraint = option_of_slurm("constraint");
  request.options.partitions = request.partitions.c_str();
  request.options.constraint = request.constraint.c_str();
}

/// For the site's Prolog and Epilog, and for slurmctld's job_submit plugins, which see them with SPANK_ before.
void set_job_variables(spank_t spank, const spc_runtime* runtime, const spc_summary& summary) {
  spank_job_control_setenv(spank, "SCONTAINER_IMAGE", summary.image, 1);
  const char* const digest = spc_image_digest(runtime);
  if (*digest != '\0') spank_job_control_setenv(spank, "SCONTAINER_DIGEST", digest, 1);
}

/// Ends srun, sbatch or salloc with the status that it would have. Nothing is submitted yet, and it does nothing but to exit when a
/// failure is returned to it, after two lines about the plugin stack.
[[noreturn]] void end_refused() {
  const char* status = ::getenv("SLURM_EXIT_ERROR");
  const int number = status == nullptr ? 0 : ::atoi(status);
  ::exit(number == 0 ? 1 : number);
}

/// Ends the task with exit code 1. Returning a failure would do the same, but Slurm then adds two lines about the plugin
/// stack for every task.
[[noreturn]] void refuse_task(const char* why) {
  // Who looks for lines of pyxis looks for one from each node.
  const bool may_be_gathered = prefix() == std::string_view(kPrefix);
  if (is_mine_to_tell() && !(may_be_gathered && srun && srun->takes(why))) slurm_spank_log("%s%s", prefix(), why);
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

/// proctrack/linuxproc takes a process named as slurmstepd for slurmstepd, and signals only the others: a scancel during the pull
/// would end the agent and not the task.
void be_a_task_to_linuxproc() {
  const auto is_linuxproc = [](dl_phdr_info* library, std::size_t, void*) {
    return std::string_view(library->dlpi_name).ends_with("/proctrack_linuxproc.so") ? 1 : 0;
  };
  if (::dl_iterate_phdr(is_linuxproc, nullptr) != 0) ::prctl(PR_SET_NAME, "container-task");
}

/// Slurm's copy of a batch step's script, which must be visible inside; nullptr for other steps.
const char* batch_script_of(spank_t spank) {
  uint32_t step = 0;
  int argc = 0;
  char** argv = nullptr;
  if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step != SLURM_BATCH_SCRIPT) return nullptr;
  return spank_get_item(spank, S_JOB_ARGV, &argc, &argv) == ESPANK_SUCCESS && argc > 0 ? argv[0] : nullptr;
}

void set_variable(const char* name, const char* value, void* spank) { spank_setenv(static_cast<spank_t>(spank), name, value, 1); }
/// On the host, when the container is ready.
TaskProlog prolog;
void run_task_prolog(void* spank) {
  char** variables = nullptr;
  if (spank_get_item(static_cast<spank_t>(spank), S_JOB_ENV, &variables) == ESPANK_SUCCESS) prolog.run_on_host(variables);
}

void unset_variable(const char* name, void* spank) { spank_unsetenv(static_cast<spank_t>(spank), name); }

}  // namespace

bool has_options() {
  if (is_pyxis() && has_peer()) return false;
  own_plugin = plugin_name;
  if (!is_pyxis()) take_over_options_of("pyxis");
  return spank_context() == S_CTX_LOCAL || read_settings(state.settings).in_allocator;
}

int refuse_early(spank_t spank) {
  open_closed_streams();  // first: a descriptor gets the lowest number that is free
  if (is_pyxis() && has_peer()) return 0;  // the options are those of spank_container
  spc_runtime* runtime = nullptr;
  if (spc_open(tell_warning, nullptr, &runtime) != SPC_OK) return -1;
  const std::string unusable = configure(runtime);
  const auto handed_over = given_to_this_component();
  const auto given = without_beaten(handed_over, from_process, nullptr);
  Request request(runtime, given, environ, nullptr, nullptr);
  std::string refused = request.refused;
  if (refused.empty()) refused = keep_components_apart(given);
  const bool wants_container = request.summary.container != 0;
  if (wants_container || spank_context() == S_CTX_ALLOCATOR) note_submission();
  const bool listens =
      wants_container && spank_context() == S_CTX_LOCAL && has_descriptors_for_nodes();
  request.options.variables = environ;  // a variable was set: it may lie elsewhere now
  request.options.begins_job = is_submission() ? 1 : 0;
  if (refused.empty() && !wants_container) {
    say_what_is_ignored(given);
    if (const auto hint = hint_about_oci_option(); !hint.empty()) slurm_error("%s%s", state.prefix, hint.c_str());
  } else if (refused.empty()) {
    refused = unusable;
    add_destination(request);
    if (refused.empty() &&
        (spc_check(runtime, &request.options) != SPC_OK || spc_check_site(runtime, &request.options) != SPC_OK)) {
      refused = spc_error_message(runtime);
    }
    if (refused.empty()) set_job_variables(spank, runtime, request.summary);
    if (refused.empty() && listens) ask_for_tag(runtime, request.options);
    if (refused.empty()) send_beside(given, handed_over);  // the last: `environ` may move
  }
  if (spank_context() == S_CTX_LOCAL) tell_tags_of_components();
  spc_close(runtime);
  if (refused.empty()) {
    if (wants_container && spank_context() == S_CTX_LOCAL) {
      if (!is_pyxis()) forbid_command();  // NVIDIA's pyxis on a node could not allow it
      if (listens) listen_to_nodes(request.summary);
    }
    return 0;
  }
  slurm_error("%s%s", state.prefix, refused.c_str());
  end_refused();
}

void enter_or_end_task(spank_t spank) {
  int task = -1;
  uint32_t node = 0;
  spank_get_item(spank, S_TASK_ID, &task);
  spank_get_item(spank, S_JOB_NODEID, &node);
  state.is_first = task == 0;
  state.tells_progress = task == 0 && node == 0;
  let_signals_end_the_task();
  be_a_task_to_linuxproc();

  own_plugin = plugin_name;
  allow_command(spank);
  srun = SrunThatListens::of_this_step(spank);
  const std::string tags = take_tags(spank), meeting = take_meeting(spank);
  if (state.runtime == nullptr) refuse_task(state.step_error.c_str());
  const std::string unusable = configure(state.runtime);
  bool is_component = false;
  const std::string lost = take_own_component(spank, is_component);
  if (!lost.empty()) refuse_task(lost.c_str());
  char** variables = nullptr;
  if (spank_get_item(spank, S_JOB_ENV, &variables) != ESPANK_SUCCESS) refuse_task("Slurm does not provide the job's environment");
  if (batch_script_of(spank) != nullptr && state.given.empty()) {
    state.given = kept_by_slurm(variable_of_job, spank);
  }
  int words = 0;
  char** command = nullptr;
  spank_get_item(spank, S_JOB_ARGV, &words, &command);
  Request request(state.runtime, is_component ? state.given : whole_given(state.given, variable_of_job, spank), variables,
                  batch_script_of(spank), command);
  request.options.resolved = tags.c_str();
  request.options.meeting = meeting.c_str();
  state.verbose = request.summary.verbose != 0;
  if (state.verbose) srun.reset();
  if (!unusable.empty()) refuse_task(unusable.c_str());
  if (!request.refused.empty()) refuse_task(request.refused.c_str());
  if (is_component && request.summary.container == 0) {
    spc_task_stay_outside(state.runtime);
    return first_has_got_in();
  }
  if (request.summary.explain != 0 && !state.tells_progress) ::_exit(0);  // one container is enough to explain
  if (!state.step_error.empty()) refuse_task(state.step_error.c_str());
  spc_environment environment{};
  environment.size = sizeof environment;
  environment.variables = variables;
  environment.set = set_variable;
  environment.unset = unset_variable;
  environment.arg = spank;
  if (request.summary.explain == 0) environment.before_entering = run_task_prolog;
  if (spc_task_enter(state.runtime, &request.options, &environment) != SPC_OK) refuse_task(spc_error_message(state.runtime));
  prolog.apply(spank);
  first_has_got_in();
}

}  // namespace spank_container
