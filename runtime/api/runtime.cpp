// C API functions that srun, sbatch and tasks call as the user.

#include "api/runtime.hpp"

#include <errno.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "config/config.hpp"
#include "launch/launch.hpp"
#include "launch/site/submit.hpp"
#include "reference/location.hpp"
#include "request/options.hpp"
#include "task/entering/arrival.hpp"
#include "task/user_identity.hpp"

using namespace spc;

namespace {

/// Passes lines to the plugin. On a terminal, the next line replaces a line of progress.
class CallbackLog final : public Log {
 public:
  explicit CallbackLog(const spc_runtime& rt) : rt_(rt) {}
  void write(LogLevel level, std::string_view line) noexcept override {
    if (rt_.log == nullptr) return;
    std::string text(line);
    if (level != LogLevel::record && level != LogLevel::debug) {
      // The plugin has written its prefix below the previous line when the terminal reads this.
      constexpr char kLineAbove[] = "\r\033[K\033[A\033[K";
      if (replaces_) text.insert(0, kLineAbove + std::string(message_prefix(rt_.style)));
      replaces_ =
          level == LogLevel::info && line.starts_with("pulling ") && ::isatty(STDERR_FILENO) == 1;
    }
    rt_.log(static_cast<int>(level), text.c_str(), rt_.log_arg);
  }

 private:
  const spc_runtime& rt_;
  bool replaces_ = false;
};

/// Adds the values of --environment, which the program that submitted has read.
Result<void> add_environment(OptionTexts& texts, const OptionTexts::Variables& variables) {
  const std::string name = texts.environment(variables);
  if (name.empty()) return {};
  const auto passed = variables.find(NamedEnvironment::kVariable);
  const auto found = NamedEnvironment::find(
      passed == variables.end() ? "" : std::string_view(passed->second), name);
  if (found) return texts.add_environment(*found);
  return Error(ErrorKind::not_found,
               formatted("--environment={}: was not read when the job was submitted",
                         printable(name)))
      .hint("give the option to srun, or to sbatch and salloc");
}

Result<OptionTexts> texts_of(const spc_options& options) {
  OptionTexts texts;
  for (auto text = options.given; text != nullptr && *text != nullptr; ++text)
    SPC_TRY(texts.add(*text));
  if (options.variables == nullptr) return texts;
  static constexpr std::string_view kRead[] = {
      OptionTexts::kTwinPrefixes[0], OptionTexts::kTwinPrefixes[1], NamedEnvironment::kVariable};
  const auto variables = as_map(options.variables, kRead);
  SPC_TRY(add_environment(texts, variables));
  SPC_TRY(texts.add_twins(variables));
  return texts;
}

std::optional<std::int64_t> submission_time(const std::map<std::string, std::string>& variables) {
  const auto since = variables.find(SPC_SINCE_VARIABLE);
  return since != variables.end() ? TagAge::parse_time(since->second) : std::nullopt;
}

/// Returns this process's work directory, as `named` if that is its name.
std::string work_directory(const std::string& named) {
  struct stat here {};
  struct stat there {};
  char path[PATH_MAX];
  if (::stat(".", &here) != 0 || ::getcwd(path, sizeof path) == nullptr) return named;
  const bool is_it = named.starts_with('/') && ::stat(named.c_str(), &there) == 0 &&
                     here.st_dev == there.st_dev && here.st_ino == there.st_ino;
  return is_it ? named : path;
}

UserPaths paths_of(const char* const* variables, ReadAt where) {
  static constexpr std::string_view kRead[] = {"HOME=", "PWD=", "SLURM_SUBMIT_DIR="};
  std::map<std::string, std::string> known;
  if (variables != nullptr) known = as_map(variables, kRead);
  const bool is_inside = where == ReadAt::container;
  // srun -D and sbatch -D change the directory of the task, and not always PWD.
  if (where == ReadAt::node) known["PWD"] = work_directory(known["PWD"]);
  auto paths =
      UserPaths::of(known, is_inside ? UserPaths::Variables::seen : UserPaths::Variables::slurm);
  // The name service of a container is code of the image.
  if (paths.home.empty()) paths.home = is_inside ? "/" : UserIdentity::of_this_process().home;
  return paths;
}

/// Returns whether this process is one that submits, and can see the user's files.
bool submits() {
  constexpr std::string_view kPrograms[] = {"srun", "sbatch", "salloc"};
  return std::ranges::find(kPrograms, std::string_view(program_invocation_short_name)) !=
         std::end(kPrograms);
}

/// In srun, sbatch and salloc: reads the environment, unless the surrounding job was submitted with
/// it, and passes it to nodes and steps. Warns of annotations without effect.
Result<void> pass_environment(spc_options& options, const spc_runtime& rt) {
  if (options.command != nullptr || options.variables == nullptr || !submits()) return {};
  OptionTexts given;
  for (auto text = options.given; text != nullptr && *text != nullptr; ++text)
    SPC_TRY(given.add(*text));
  const auto variables = as_map(options.variables);
  const std::string name = given.environment(variables);
  if (name.empty()) return {};
  const auto passed = variables.find(NamedEnvironment::kVariable);
  std::string all = passed == variables.end() ? "" : passed->second;
  const bool is_step = program_invocation_short_name == std::string_view("srun") &&
                       variables.contains("SLURM_JOB_ID");
  if (is_step && NamedEnvironment::find(all, name)) return {};
  const auto read = SPC_TRY(read_environment(name));
  for (const std::string& warning : read.warnings)
    CallbackLog(rt).write(LogLevel::warning, warning);
  const bool has_room = all.size() + read.record.size() < NamedEnvironment::kMostVariable;
  all = has_room && !all.empty() ? read.record + ";" + all : read.record;
  if (::setenv(NamedEnvironment::kVariable, all.c_str(), 1) != 0)
    return Error::from_errno(errno, "pass the environment to the nodes");
  options.variables = environ;
  return {};
}

Result<LaunchRequest> parse_options(const spc_options* given, ReadAt where) {
  const auto options = SPC_TRY(adopt(given, spc_options{}));
  const auto texts = SPC_TRY(texts_of(options));
  const auto paths = paths_of(options.variables, where);
  auto request = SPC_TRY(texts.parse(where, paths));
  for (auto word = options.command; word != nullptr && *word != nullptr; ++word)
    request.command.emplace_back(*word);
  if (options.batch_script != nullptr) request.batch_script = options.batch_script;
  request.only_pull = options.only_pull != 0;
  request.begins_job = options.begins_job != 0;
  if (options.resolved != nullptr) request.resolved = options.resolved;
  if (options.tracker != nullptr) request.tracker = options.tracker;
  return request;
}

/// Reads texts for launch(), without any capability. Returns the job's variables in `environment`.
Result<Asked> read_texts(spc_runtime& rt, const spc_options* options, spc_environment& environment,
                         ReadAt where) {
  if (environment.read != nullptr) {
    const int said = environment.read(&options, &environment.variables, environment.arg);
    if (said < 0)
      return Error(ErrorKind::invalid, "read what the job asks for: the caller refuses it");
    if (said != SPC_OK)
      return Asked{.verdict = said == SPC_READ_OUTSIDE ? Asked::outside : Asked::left};
  }
  Asked asked{.request = SPC_TRY(parse_options(options, where)),
              .job = as_map(environment.variables)};
  asked.request.style = &rt.style;
  asked.request.overrides = rt.settings;
  asked.request.since = submission_time(asked.job);
  asked.request.granted_devices = rt.granted;
  return asked;
}

/// Passes the environment to the task. Ends the task if it executes no program.
void hand_over(const std::optional<EnvironmentChange>& change, const spc_environment& environment) {
  if (!change) ::_exit(0);
  for (const auto& name : change->unset) environment.unset(name.c_str(), environment.arg);
  for (const auto& [name, value] : change->set)
    environment.set(name.c_str(), value.c_str(), environment.arg);
}

}  // namespace

int spc_configure(spc_runtime* rt, const char* const* settings) {
  return guard(rt, [&]() -> Result<void> {
    rt->settings.clear();
    for (; settings != nullptr && *settings != nullptr; ++settings)
      rt->settings.emplace_back(*settings);
    SitePolicy site = SitePolicy::read();
    site.override_with(rt->settings);
    rt->style = message_style(site);
    return {};
  });
}

const char* spc_message_prefix(const spc_runtime* rt) {
  return message_prefix(rt == nullptr ? MessageStyle::own : rt->style);
}

int spc_summarize(spc_runtime* rt, const spc_options* options, spc_summary* out) {
  return guard(rt, [&]() -> Result<void> {
    auto adopted = SPC_TRY(adopt(options, spc_options{}));
    SPC_TRY(pass_environment(adopted, *rt));
    const auto texts = SPC_TRY(texts_of(adopted));
    static bool has_warned = false;  // srun asks again for each component
    if (adopted.command == nullptr && !std::exchange(has_warned, true)) {
      for (const std::string& line : misspelt_variables(adopted.variables))
        CallbackLog(*rt).write(LogLevel::warning, line);
    }
    spc_summary summary{.size = sizeof summary,
                        .container = texts.has("container-image") || texts.has("container-name") ||
                                             texts.has("environment")
                                         ? 1
                                         : 0,
                        .explain = texts.has("container-explain") ? 1 : 0,
                        .verbose = texts.has("container-verbose") ? 1 : 0};
    const std::string image = without_secrets(texts.last("container-image"));
    if (image.size() < sizeof summary.image) image.copy(summary.image, image.size());
    return hand_out(summary, out);
  });
}

int spc_check(spc_runtime* rt, const spc_options* options) {
  return guard(rt, [&]() -> Result<void> {
    SPC_TRY(parse_options(options, ReadAt::submission));
    return {};
  });
}

int spc_check_site(spc_runtime* rt, const spc_options* options) {
  return guard(rt, [&]() -> Result<void> {
    const auto adopted = SPC_TRY(adopt(options, spc_options{}));
    const auto text = [](const char* given) { return std::string(given == nullptr ? "" : given); };
    const Destination destination{.partitions = text(adopted.partitions),
                                  .constraint = text(adopted.constraint)};
    const auto request = SPC_TRY(parse_options(options, ReadAt::submission));
    auto answer = SPC_TRY(check_at_submission(request, destination));
    for (const auto& warning : answer.warnings) CallbackLog(*rt).write(LogLevel::warning, warning);
    rt->image_digest = std::move(answer.digest);
    return {};
  });
}

const char* spc_image_digest(const spc_runtime* rt) {
  return rt == nullptr ? "" : rt->image_digest.c_str();
}

struct spc_tags : TagQuestions {};

int spc_tags_ask(spc_runtime* rt, const spc_options* options, spc_tags** tags) {
  return guard(rt, [&]() -> Result<void> {
    auto request = SPC_TRY(parse_options(options, ReadAt::submission));
    static constexpr std::string_view kSince[] = {SPC_SINCE_VARIABLE "="};
    request.since = submission_time(as_map(options->variables, kSince));
    if (*tags == nullptr) *tags = new spc_tags;
    (*tags)->ask(request);
    return {};
  });
}

const char* spc_tags_known(spc_tags* tags, unsigned milliseconds) {
  try {
    return tags == nullptr ? "" : tags->known(std::chrono::milliseconds(milliseconds));
  } catch (const std::exception&) {  // out of memory
    return "";
  }
}

void spc_tags_free(spc_tags* tags) { delete tags; }

void spc_task_begin(void) { [[maybe_unused]] const auto kept = keep_nothing_else(); }

int spc_task_flags(const spc_runtime* rt) {
  static_assert(int{SPC_FLAG_ERROR_REPORT} == int{PolicyRecord::error_report});
  static_assert(int{SPC_FLAG_TASK_PROLOG_ON_HOST} == int{PolicyRecord::task_prolog_on_host});
  return rt == nullptr ? -1 : static_cast<int>(rt->task_flags);
}

int spc_task_enter(spc_runtime* rt, const spc_options* options, const spc_environment* given) {
  const int entered = guard(rt, [&]() -> Result<void> {
    auto environment = SPC_TRY(adopt(given, spc_environment{}));
    if (!rt->channel.tasks)
      return Error(ErrorKind::internal, "enter the container: the step has no channel");
    rt->channel.keeper.reset();  // root's mounts, which the user must not receive
    CallbackLog log(*rt);
    std::function<void()> before;
    if (environment.before_entering != nullptr)
      before = [&] { environment.before_entering(environment.arg); };
    std::function<void(bool)> lead;
    if (environment.before_leading != nullptr)
      lead = [&](bool first) { environment.before_leading(first ? 1 : 0, environment.arg); };
    const auto fail_step = [&] {
      if (environment.fail_step != nullptr) environment.fail_step(environment.arg);
    };
    const auto read = [&](ReadAt where) { return read_texts(*rt, options, environment, where); };
    const auto change = SPC_TRY(launch({.read = read,
                                        .variables = environment.variables,
                                        .step = rt->channel,
                                        .agent_group = rt->agent.group(),
                                        .style = rt->style,
                                        .log = log,
                                        .before_entering = before,
                                        .before_leading = lead,
                                        .fail_step = fail_step,
                                        .task_flags = rt->task_flags}));
    hand_over(change, environment);
    return {};
  });
  if (entered != SPC_OK) give_up_entering();
  return entered;
}

int spc_task_stay_outside(spc_runtime*) {
  give_up_entering();
  return SPC_OK;
}

const char* spc_launcher_path(void) {
  try {
    static const std::string path = own_program("container-helper");
    return path.c_str();
  } catch (const std::exception&) {  // out of memory
    return "";
  }
}

int spc_site_flag(const char* key, int otherwise) {
  try {
    const auto site = key == nullptr ? std::nullopt : SitePolicy::read_if_any();
    return site ? static_cast<int>(site->flag(key).value_or(otherwise != 0)) : otherwise;
  } catch (const std::exception&) {  // out of memory
    return otherwise;
  }
}
