#include "user_side.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "across_nodes.hpp"
#include "given.hpp"
#include "oci_hint.hpp"
#include "submission.hpp"
#include "task_start.hpp"

namespace spank_container {
namespace {

/// What was asked for, as the library takes it; made in srun, and again in the task, since a user
/// can avoid srun.
struct Request {
  std::vector<std::string> texts;
  std::vector<const char*> given;  ///< the same
  spc_options options{};           ///< borrows them
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

/// Whether this is what submits the job.
bool is_submission() {
  return spank_context() == S_CTX_ALLOCATOR || ::getenv("SLURM_JOB_ID") == nullptr;
}

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

/// What the job's steps have asked registries since counts for its later ones, and so does what
/// others have.
void note_submission() {
  if (is_submission()) ::setenv(SPC_SINCE_VARIABLE, std::to_string(::time(nullptr)).c_str(), 1);
}

std::optional<SrunThatListens>
    srun;  ///< for this task's error; without one the task prints it itself

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
  state.prefix = spc_message_prefix(
      runtime);  // "own" in plugstack.conf, or nothing there: as config.toml has it
  return settings.refused;
}

/// Options that do nothing without a container: said once each, and the job runs on the host as
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

/// What the tasks of a node know of their errors, in `Told::error`.
enum Told : uint32_t { not_yet = 0, first_is_in, by_one };

/// One line for each node: the first task's, whose error is mostly everybody's. Only when it has
/// got in, or has not decided within two seconds, another's.
bool is_mine_to_tell() {
  if (state.told == nullptr) return state.is_first();
  const bool is_likely = state.is_first() || state.told->explainer != 0;
  for (int ms = 0; !is_likely && state.told->error == not_yet && ms < 2000; ms += 10)
    ::usleep(10'000);
  return state.told->error.exchange(by_one) != by_one;
}

/// Unless another task has told an error of its own meanwhile.
void first_has_got_in() {
  uint32_t before = not_yet;
  if (state.told != nullptr && state.is_first())
    state.told->error.compare_exchange_strong(before, first_is_in);
}

/// What is doubtful about a request: a line for the user, and it is submitted.
void tell_warning(int level, const char* line, void*) {
  if (level == SPC_LOG_WARNING) slurm_info("%swarning: %s", state.prefix, line);
}

/// Where the job is to run. In a job, a step runs where that does.
void add_destination(Request& request) {
  const char* const of_job =
      spank_context() == S_CTX_LOCAL ? ::getenv("SLURM_JOB_PARTITION") : nullptr;
  request.partitions = option_of_slurm("partition");
  if (request.partitions.empty() && of_job != nullptr) request.partitions = of_job;
  request.constraint = option_of_slurm("constraint");
  request.options.partitions = request.partitions.c_str();
  request.options.constraint = request.constraint.c_str();
}

/// For the site's Prolog and Epilog, and for slurmctld's job_submit plugins, which see them with
/// SPANK_ before.
void set_job_variables(spank_t spank, const spc_runtime* runtime, const spc_summary& summary) {
  spank_job_control_setenv(spank, "SCONTAINER_IMAGE", summary.image, 1);
  const char* const digest = spc_image_digest(runtime);
  if (*digest != '\0') spank_job_control_setenv(spank, "SCONTAINER_DIGEST", digest, 1);
}

/// Ends srun, sbatch or salloc with the status that it would have. Nothing is submitted yet, and it
/// does nothing but to exit when a failure is returned to it, after two lines about the plugin
/// stack.
[[noreturn]] void end_refused() {
  const char* status = ::getenv("SLURM_EXIT_ERROR");
  const int number = status == nullptr ? 0 : ::atoi(status);
  ::exit(number == 0 ? 1 : number);
}

/// Ends the task with exit code 1. Returning a failure would do the same, but Slurm then adds two
/// lines about the plugin stack for every task.
[[noreturn]] void refuse_task(const char* why) {
  // Who looks for lines of pyxis looks for one from each node.
  const bool may_be_gathered = prefix() == std::string_view(kPrefix);
  if (is_mine_to_tell() && !(may_be_gathered && srun && srun->takes(why)))
    slurm_spank_log("%s%s", prefix(), why);
  ::_exit(1);
}

/// Slurm's copy of a batch step's script, which must be visible inside; nullptr for other steps.
const char* batch_script_of(spank_t spank) {
  uint32_t step = 0;
  int argc = 0;
  char** argv = nullptr;
  if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step != SLURM_BATCH_SCRIPT)
    return nullptr;
  return spank_get_item(spank, S_JOB_ARGV, &argc, &argv) == ESPANK_SUCCESS && argc > 0 ? argv[0]
                                                                                       : nullptr;
}

// --- what the site's TaskProlog has said on the host ---

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

/// One line of the script's output: `print TEXT`, `export NAME=VALUE` or `unset NAME`; others mean
/// nothing.
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

/// In the container: applies it to task and environment, as Slurm would. Ends the task if the
/// script failed. Slurm would run that script after us, in the container, where its path must
/// exist: if the site wants it on the host, the task runs it before entering, and removes it from
/// Slurm's configuration in this process. Other scripts run by Slurm in the container work: from
/// 23.11 on with our launcher (runtime/container_helper).
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

// --- the texts of a task ---

/// The first that reads on the first node: the leader's task.
bool is_explainer() {
  if (state.told == nullptr) return state.tells_progress;
  const uint32_t number = state.task + 1;
  uint32_t known = 0;
  return state.node == 0 &&
         (state.told->explainer.compare_exchange_strong(known, number) || known == number);
}

/// What the user asks for, as a task or its leader reads it: where it has no capability.
struct TaskTexts {
  std::string tags, meeting;
  std::string refused;  ///< why no task of this step may start
  char** variables = nullptr;
  std::optional<Request> request;
  bool is_outside = false;  ///< the task's component has no container
  bool leaves = false;      ///< one container is enough to explain

  explicit TaskTexts(spank_t spank) : tags(take_tags(spank)), meeting(take_meeting(spank)) {
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
    request->options.meeting = meeting.c_str();
    state.verbose = request->summary.verbose != 0;
    if (state.verbose) srun.reset();
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
  const TaskStarted& started = start_task(spank, read_texts);
  // From here on there is no capability: the task is inside, or on the host for good.
  if (started.code != SPC_OK) {
    const std::string why =
        state.step_error.empty() ? spc_error_message(state.runtime) : state.step_error;
    const TaskTexts& texts = task_texts(spank);
    if (texts.is_outside) return first_has_got_in();
    if (texts.leaves) ::_exit(0);
    refuse_task(texts.refused.empty() ? why.c_str() : texts.refused.c_str());
  }
  task_texts(spank);  // a batch script that stays outside is not to see the variables either
  obey_prolog(started, spank);
  first_has_got_in();
}

}  // namespace spank_container
