#include "spank/user_side.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "spank/across_nodes.hpp"
#include "spank/job_options.hpp"
#include "spank/task_start.hpp"

namespace spank_container {

// --- user side ---

namespace {

/// The request in the library's form. srun builds it, and the task builds it again because a user
/// can bypass srun.
struct Request {
  std::vector<std::string> texts;
  std::vector<const char*> given;  ///< pointers into them
  spc_options options{};           ///< borrows the pointers
  spc_summary summary{};
  std::string refused;
  std::string partitions, constraint;

  Request(spc_runtime* runtime, std::span<const GivenOption> all, const char* const* variables,
          const char* batch_script, const char* const* command) {
    for (const GivenOption& one : all) {
      const spc_option& option = option_table()[one.row];
      texts.push_back(option.argument == nullptr ? option.name
                                                 : std::string(option.name) + "=" + one.value);
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

/// Returns whether this process submits the job.
bool is_submission() {
  return spank_context() == S_CTX_ALLOCATOR || ::getenv("SLURM_JOB_ID") == nullptr;
}

/// Opens descriptors 0, 1 and 2 on /dev/null where they are closed, as cron and daemons leave them.
/// Otherwise Slurm would use the sockets and pipes of this plugin as the step's streams, as it does
/// with its own.
void open_closed_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

/// Returns whether srun can listen to its nodes and still has the descriptors that Slurm needs:
/// without them it crashes or hangs. Otherwise every node reports its own errors and pulls by
/// itself.
bool has_descriptors_for_nodes() {
  constexpr rlim_t kWanted = 64;
  rlimit limit{};
  const int lowest = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  ::close(lowest);
  return lowest >= 0 && ::getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
         limit.rlim_cur >= static_cast<rlim_t>(lowest) + kWanted;
}

bool from_process(const char* name, std::string& value, void*) {
  const char* found = ::getenv(name);
  if (found != nullptr) value = found;
  return found != nullptr;
}

/// Records the submission time: registry answers obtained since then, by the job's steps or by
/// others, remain valid for its later steps. Also records the variables of options.
void note_submission() {
  if (!is_submission()) return;
  ::setenv(SPC_SINCE_VARIABLE, std::to_string(::time(nullptr)).c_str(), 1);
  note_variables(from_process, nullptr);
}

/// receives this task's error; without it the task prints the error itself, as with --verbose
std::optional<SrunThatListens> srun;

/// Passes plugstack.conf's settings to the library. Returns the error, or an empty text.
std::string configure(spc_runtime* runtime) {
  const Settings settings = read_settings(state.settings);
  std::vector<const char*> texts;
  for (const auto& text : settings.site) texts.push_back(text.c_str());
  texts.push_back(nullptr);
  if (spc_configure(runtime, texts.data()) != SPC_OK) return spc_error_message(runtime);
  // With "own" in plugstack.conf, or no setting there, config.toml decides.
  state.prefix = spc_message_prefix(runtime);
  return settings.refused;
}

/// Warns once per option that has no effect without a container. The job runs on the host as
/// before.
void say_what_is_ignored(const std::vector<GivenOption>& given) {
  std::vector<std::string> said;
  for (const GivenOption& option : given) {
    const spc_option& row = option_table()[option.row];
    std::string name = row.name;
    if (name.starts_with("no-")) name = "[no-]" + name.substr(3);
    if (row.opposite != nullptr && row.opposite == "no-" + name) name = "[no-]" + name;
    if (std::find(said.begin(), said.end(), name) != said.end()) continue;
    said.push_back(name);
    slurm_error("%signoring --%s because neither --container-image nor --container-name is set",
                state.prefix, name.c_str());
  }
}

/// State of a node's error reports, in `NodeState::error`.
enum ErrorState : uint32_t { not_yet = 0, first_is_in, by_one };

/// Returns whether this task prints its error. Each node prints one line: that of the first task,
/// whose error is usually the error of all tasks. If the first task has entered, or has not decided
/// within two seconds, another task prints.
bool is_mine_to_tell() {
  if (state.told == nullptr) return state.is_first();
  const bool is_likely = state.is_first() || state.told->explainer != 0;
  for (int ms = 0; !is_likely && state.told->error == not_yet && ms < 2000; ms += 10)
    ::usleep(10'000);
  return state.told->error.exchange(by_one) != by_one;
}

/// Records that the first task has entered, unless another task has reported an error meanwhile.
void first_has_got_in() {
  uint32_t before = not_yet;
  if (state.told != nullptr && state.is_first())
    state.told->error.compare_exchange_strong(before, first_is_in);
}

/// Prints a warning. The job is still submitted.
void tell_warning(int level, const char* line, void*) {
  if (level == SPC_LOG_WARNING) slurm_info("%swarning: %s", state.prefix, line);
}

/// Partition and constraint of the job; a step inherits them.
void add_destination(Request& request) {
  const char* const of_job =
      spank_context() == S_CTX_LOCAL ? ::getenv("SLURM_JOB_PARTITION") : nullptr;
  request.partitions = option_of_slurm("partition");
  if (request.partitions.empty() && of_job != nullptr) request.partitions = of_job;
  request.constraint = option_of_slurm("constraint");
  request.options.partitions = request.partitions.c_str();
  request.options.constraint = request.constraint.c_str();
}

/// Sets variables for the site's Prolog and Epilog and for slurmctld's job_submit plugins, which
/// see them with the prefix SPANK_.
void set_job_variables(spank_t spank, const spc_runtime* runtime, const spc_summary& summary) {
  spank_job_control_setenv(spank, "SCONTAINER_IMAGE", summary.image, 1);
  const char* const digest = spc_image_digest(runtime);
  if (*digest != '\0') spank_job_control_setenv(spank, "SCONTAINER_DIGEST", digest, 1);
}

/// Ends srun, sbatch or salloc with its usual failure status. Nothing is submitted yet. Returning a
/// failure would also make it exit, after two lines about the plugin stack.
[[noreturn]] void end_refused() {
  const char* status = ::getenv("SLURM_EXIT_ERROR");
  const int number = status == nullptr ? 0 : ::atoi(status);
  ::exit(number == 0 ? 1 : number);
}

/// Ends the task with exit code 1. Returning a failure would do the same, but Slurm then adds two
/// lines about the plugin stack for every task.
[[noreturn]] void refuse_task(const char* why) {
  // Scripts that parse pyxis output expect one line per node.
  const bool may_be_collected = prefix() == std::string_view(kPrefix);
  if (is_mine_to_tell() && !(may_be_collected && srun && srun->takes(why)))
    slurm_spank_log("%s%s", prefix(), why);
  ::_exit(1);
}

/// Returns Slurm's copy of a batch step's script, which must be visible inside; nullptr for other
/// steps.
const char* batch_script_of(spank_t spank) {
  uint32_t step = 0;
  int argc = 0;
  char** argv = nullptr;
  if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step != SLURM_BATCH_SCRIPT)
    return nullptr;
  return spank_get_item(spank, S_JOB_ARGV, &argc, &argv) == ESPANK_SUCCESS && argc > 0 ? argv[0]
                                                                                       : nullptr;
}

// --- output of the site's TaskProlog on the host ---

constexpr char kContext[] = "SLURM_SCRIPT_CONTEXT";

std::string_view without_spaces_before(std::string_view text) {
  while (!text.empty() && (text[0] == ' ' || text[0] == '\t')) text.remove_prefix(1);
  return text;
}

std::string_view without_spaces_behind(std::string_view text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

/// Applies one line of the script's output: `print TEXT`, `export NAME=VALUE` or `unset NAME`.
/// Ignores other lines.
void obey(std::string_view line, spank_t spank) {
  if (line.starts_with("print ")) {
    write_all(std::string(without_spaces_before(line.substr(6))) + "\n");
  } else if (line.starts_with("export ")) {
    const auto assignment = without_spaces_before(line.substr(7));
    const auto equals = assignment.find('=');
    if (equals == std::string_view::npos) return;
    const std::string name(without_spaces_behind(assignment.substr(0, equals)));
    if (!name.empty())
      spank_setenv(spank, name.c_str(), std::string(assignment.substr(equals + 1)).c_str(), 1);
  } else if (line.starts_with("unset ")) {
    const std::string name(without_spaces_behind(without_spaces_before(line.substr(6))));
    if (!name.empty()) spank_unsetenv(spank, name.c_str());
  }
}

/// In the container: applies the script's output to task and environment, as Slurm would. Ends the
/// task if the script failed.
///
/// Slurm would run TaskProlog after this callback, in the container, where its path must exist. If
/// the site wants it on the host, the task runs it before entering and removes it from Slurm's
/// configuration in this process. Other scripts that Slurm runs in the container work without this:
/// from Slurm 23.11 on, with the launcher of this package (runtime/container_helper).
void obey_prolog(const TaskStarted& started, spank_t spank) {
  std::string_view rest = started.prolog_said;
  if (!rest.empty()) spank_setenv(spank, kContext, "prolog_task", 1);
  while (!rest.empty()) {
    const auto end = rest.find('\n');
    obey(rest.substr(0, end), spank);
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  if (started.prolog_status == 0) return;
  slurm_error("TaskProlog failed status=%d", started.prolog_status);
  ::_exit(started.prolog_status);
}

/// In the container: reports once per step a TaskProlog that Slurm will not find there.
void report_missing_prolog() {
  if (!state.is_first() || state.node != 0 || &slurm_conf == nullptr) return;
  const char* const path = slurm_conf.task_prolog;
  if (path == nullptr || ::access(path, F_OK) == 0 || errno != ENOENT) return;
  slurm_spank_log(
      "%swarning: TaskProlog %s does not exist in the container (hint: --container-mounts=%s, or "
      "the administrator can set task_prolog_on_host = true)",
      prefix(), path, path);
}

// --- texts of a task ---

/// Returns whether this is the first reader on the first node, that is, the leader's task.
bool is_explainer() {
  if (state.told == nullptr) return state.tells_progress;
  const uint32_t number = state.task + 1;
  uint32_t known = 0;
  return state.node == 0 &&
         (state.told->explainer.compare_exchange_strong(known, number) || known == number);
}

/// The user's request as read by a task or its leader, without capabilities.
struct TaskTexts {
  std::string tags, tracker;
  std::string refused;  ///< why the tasks of this step must not start
  char** variables = nullptr;
  std::optional<Request> request;
  bool is_outside = false;  ///< the task's component has no container
  bool leaves = false;      ///< another task explains, one container is enough

  explicit TaskTexts(spank_t spank) : tags(take_tags(spank)), tracker(take_tracker(spank)) {
    own_plugin = plugin_name;
    allow_command(spank);
    srun = SrunThatListens::of_this_step(spank);
    if (state.runtime == nullptr) return;
    const std::string unusable = configure(state.runtime);
    bool is_component = false;
    refused = take_own_component(spank, is_component);
    if (refused.empty() && spank_get_item(spank, S_JOB_ENV, &variables) != ESPANK_SUCCESS)
      refused = "Slurm does not provide the job's environment";
    if (!refused.empty()) return;
    if (batch_script_of(spank) != nullptr && state.given.empty()) {
      state.given = kept_by_slurm(variable_of_job, spank);
    }
    int words = 0;
    char** command = nullptr;
    spank_get_item(spank, S_JOB_ARGV, &words, &command);
    request.emplace(state.runtime,
                    is_component ? state.given : whole_given(state.given, variable_of_job, spank),
                    variables, batch_script_of(spank), command);
    request->options.resolved = tags.c_str();
    request->options.tracker = tracker.c_str();
    state.verbose = request->summary.verbose != 0;
    refused = unusable.empty() ? request->refused : unusable;
    is_outside = refused.empty() && is_component && request->summary.container == 0;
    const bool explains = refused.empty() && request->summary.explain != 0;
    if (explains) state.tells_progress = is_explainer();
    leaves = explains && !state.tells_progress;
  }
};

const TaskTexts& task_texts(spank_t spank) {
  static const TaskTexts texts(spank);
  return texts;
}

int read_texts(const spc_options** options, const char* const** variables, void* spank) {
  const TaskTexts& texts = task_texts(static_cast<spank_t>(spank));
  if (!texts.refused.empty()) return SPC_E_INVALID;
  if (texts.is_outside) return SPC_READ_OUTSIDE;
  if (texts.leaves) return SPC_READ_LEAVE;
  *options = &texts.request->options;
  *variables = texts.variables;
  return SPC_OK;
}

/// Called without capabilities.
constexpr spc_environment kWithoutPrivilege = {.read = read_texts, .fail_step = [](void*) {
                                                 if (srun) srun->fail();
                                               }};

}  // namespace

bool has_options() {
  if (is_pyxis() && has_peer()) return false;
  own_plugin = plugin_name;
  if (!is_pyxis()) take_over_options_of("pyxis");
  return spank_context() == S_CTX_LOCAL || read_settings(state.settings).in_allocator;
}

int refuse_early(spank_t spank) {
  open_closed_streams();  // first, because a descriptor gets the lowest free number
  if (is_pyxis() && has_peer()) return 0;  // spank_container handles the options
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
  request.options.variables = environ;  // setting a variable may have moved `environ`
  request.options.begins_job = is_submission() ? 1 : 0;
  if (refused.empty() && !wants_container) {
    say_what_is_ignored(given);
    if (const auto hint = hint_about_oci_option(); !hint.empty())
      slurm_error("%s%s", state.prefix, hint.c_str());
  } else if (refused.empty()) {
    refused = unusable;
    add_destination(request);
    if (refused.empty() && (spc_check(runtime, &request.options) != SPC_OK ||
                            spc_check_site(runtime, &request.options) != SPC_OK)) {
      refused = spc_error_message(runtime);
    }
    if (refused.empty()) set_job_variables(spank, runtime, request.summary);
    if (refused.empty() && listens) ask_for_tag(runtime, request.options);
    if (refused.empty()) send_beside(given, handed_over);  // last, because `environ` may move
  }

  // Pass the results to the nodes, or end the program.
  if (spank_context() == S_CTX_LOCAL) tell_tags_of_components();
  spc_close(runtime);
  if (refused.empty()) {
    if (wants_container && spank_context() == S_CTX_LOCAL) {
      if (!is_pyxis()) forbid_command();  // NVIDIA's pyxis on a node could not call allow_command()
      if (listens) listen_to_nodes(request.summary);
    }
    return 0;
  }
  slurm_error("%s%s", state.prefix, refused.c_str());
  end_refused();
}

void enter_or_end_task(spank_t spank) {
  const TaskStarted& started = start_task(spank, kWithoutPrivilege);
  // The task has no capability any more: it is inside, or stays on the host.
  if (started.code != SPC_OK) {
    const std::string why =
        state.step_error.empty() ? spc_error_message(state.runtime) : state.step_error;
    const TaskTexts& texts = task_texts(spank);
    if (texts.is_outside) return first_has_got_in();
    if (texts.leaves) ::_exit(0);
    refuse_task(texts.refused.empty() ? why.c_str() : texts.refused.c_str());
  }
  task_texts(spank);  // removes the variables from a batch script that stays outside as well
  obey_prolog(started, spank);
  report_missing_prolog();
  first_has_got_in();
}

}  // namespace spank_container

// --- submission ---

extern "C" {
// a slurm_opt_t, whose members differ from release to release
extern char opt[] __attribute__((weak));
char* slurm_option_get(void* options, const char* name) __attribute__((weak));
}

namespace spank_container {

std::string option_of_slurm(const char* name) {
  constexpr std::string_view kPrograms[] = {"srun", "sbatch", "salloc"};
  const bool is_known =
      std::ranges::find(kPrograms, std::string_view(program_invocation_short_name)) !=
      std::end(kPrograms);
  char* const options = opt;
  if (!is_known || options == nullptr || slurm_option_get == nullptr) return {};
  // not freed: only Slurm's own allocator could free it
  const char* const value = slurm_option_get(options, name);
  return value == nullptr || std::string_view(value) == "unset" ? std::string() : value;
}

}  // namespace spank_container
