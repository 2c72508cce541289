#include "spank_container/runtime.h"

#include <cxxabi.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/process/own_program.hpp"
#include "image/reference/file_url.hpp"
#include "launch/launch.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/messages.hpp"
#include "launch/request/options.hpp"
#include "launch/site/submit_check.hpp"
#include "launch/site/tag_question.hpp"
#include "task/entering/arrival.hpp"
#include "task/granted_devices.hpp"
#include "task/step_agent.hpp"

using namespace spc;

struct spc_runtime {
  spc_log_fn log = nullptr;
  void* log_arg = nullptr;
  std::string error, image_digest;
  StepChannel channel;
  StepAgent agent;
  std::vector<std::string> settings;  ///< that plugstack.conf overrides
  MessageStyle style = MessageStyle::own;
  std::optional<std::set<std::string>> granted;  ///< GPUs' nodes that the step may open
  std::int64_t task_flags = -1;                  ///< SPC_FLAG_*, as the agent says; -1: not yet
  pid_t opened_by = 0;                           ///< the process that will fork the tasks
};

namespace {

constexpr char kServiceUser[] = "spank-container";

/// The codes of the C API count down in the order of ErrorKind.
constexpr int code_of(ErrorKind kind) { return -1 - static_cast<int>(kind); }
static_assert(code_of(ErrorKind::invalid) == SPC_E_INVALID &&
              code_of(ErrorKind::corrupt) == SPC_E_CORRUPT);
static_assert(code_of(ErrorKind::internal) == SPC_E_INTERNAL);

/// Every function of the C API runs its body in here: no exception leaves it, and a failure leaves
/// its text in the handle.
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

/// Reads a caller's struct of any earlier or later version: what he does not know stays at
/// `known`'s default.
template <typename Struct>
Result<Struct> adopt(const Struct* given, Struct known) {
  if (given == nullptr || given->size < sizeof(size_t))
    return Error(ErrorKind::invalid, "missing argument");
  std::memcpy(&known, given, std::min(given->size, sizeof known));
  known.size = sizeof known;
  return known;
}

class CallbackLog final : public Log {
 public:
  explicit CallbackLog(const spc_runtime& rt) : rt_(rt) {}
  void write(LogLevel level, std::string_view line) noexcept override {
    if (rt_.log != nullptr)
      rt_.log(static_cast<int>(level), std::string(line).c_str(), rt_.log_arg);
  }

 private:
  const spc_runtime& rt_;
};

/// Writes as much of `known` as the caller's struct has room for.
template <typename Struct>
Result<void> hand_out(Struct known, Struct* out) {
  if (out == nullptr || out->size < sizeof(size_t))
    return Error(ErrorKind::invalid, "missing argument");
  known.size = out->size;
  std::memcpy(out, &known, std::min(out->size, sizeof known));
  return {};
}

Result<OptionTexts> texts_of(const spc_options& options) {
  OptionTexts texts;
  for (auto text = options.given; text != nullptr && *text != nullptr; ++text)
    SPC_TRY(texts.add(*text));
  if (options.variables != nullptr)
    SPC_TRY(texts.add_twins(as_map(options.variables, OptionTexts::kTwinPrefixes)));
  return texts;
}

std::optional<std::int64_t> submission_time(const std::map<std::string, std::string>& variables) {
  const auto since = variables.find(SPC_SINCE_VARIABLE);
  return since != variables.end() ? TagAge::parse_time(since->second) : std::nullopt;
}

Result<LaunchRequest> parse_options(const spc_options* given, ReadAt where) {
  const auto options = SPC_TRY(adopt(given, spc_options{}));
  const auto texts = SPC_TRY(texts_of(options));
  auto request = SPC_TRY(texts.parse(where));
  for (auto word = options.command; word != nullptr && *word != nullptr; ++word)
    request.command.emplace_back(*word);
  if (options.batch_script != nullptr) request.batch_script = options.batch_script;
  request.only_pull = options.only_pull != 0;
  request.begins_job = options.begins_job != 0;
  if (options.resolved != nullptr) request.resolved = options.resolved;
  if (options.meeting != nullptr) request.meeting = options.meeting;
  return request;
}

/// For launch(), where there is no capability any more. `environment` gets the variables that
/// count.
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

/// Environment and words that the task is executed with. Ends the task if it executes nothing.
void hand_over(const TaskEntry& entry, const spc_environment& environment, Log& log) {
  if (entry.explained) ::_exit(0);
  if (entry.outside) return;
  for (const auto& name : entry.environment.unset) environment.unset(name.c_str(), environment.arg);
  for (const auto& [name, value] : entry.environment.set)
    environment.set(name.c_str(), value.c_str(), environment.arg);
  if (!entry.timing.empty()) log.write(LogLevel::debug, entry.timing);
}

}  // namespace

int spc_open(spc_log_fn log, void* arg, spc_runtime** out) {
  if (out == nullptr) return SPC_E_INVALID;
  *out = new (std::nothrow) spc_runtime{.log = log, .log_arg = arg};
  return *out != nullptr ? SPC_OK : SPC_E_NO_SPACE;
}

void spc_close(spc_runtime* rt) {
  if (rt == nullptr) return;
  if (rt->opened_by == ::getpid()) [[maybe_unused]]
    const auto stopped = rt->agent.stop(rt->channel);
  [[maybe_unused]] const int kept =
      rt->channel.keeper.release();  // its close would free all pages of the step's tmpfs here
  delete rt;
}

const char* spc_error_message(const spc_runtime* rt) {
  return rt == nullptr ? "no handle" : rt->error.c_str();
}

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

int spc_option_at(size_t number, spc_option* out) {
  const auto all = container_options();
  if (number >= all.size()) return SPC_E_NOT_FOUND;
  const ContainerOption& option = all[number];
  const spc_option known{.size = sizeof known,
                         .name = option.name,
                         .argument = option.argument,
                         .help = option.help,
                         .opposite = option.opposite,
                         .is_list = option.kind == ContainerOption::Kind::list ? 1 : 0};
  return hand_out(known, out) ? SPC_OK : SPC_E_INVALID;
}

int spc_summarize(spc_runtime* rt, const spc_options* options, spc_summary* out) {
  return guard(rt, [&]() -> Result<void> {
    const auto adopted = SPC_TRY(adopt(options, spc_options{}));
    const auto texts = SPC_TRY(texts_of(adopted));
    spc_summary summary{
        .size = sizeof summary,
        .container = texts.has("container-image") || texts.has("container-name") ? 1 : 0,
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

int spc_node_setup(spc_runtime* rt) {
  return guard(rt, [&]() -> Result<void> {
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
    const auto read = [&](ReadAt where) { return read_texts(*rt, options, environment, where); };
    const auto entry = SPC_TRY(launch({.read = read,
                                       .variables = environment.variables,
                                       .step = rt->channel,
                                       .agent_group = rt->agent.group(),
                                       .style = rt->style,
                                       .log = log,
                                       .before_entering = before,
                                       .before_leading = lead,
                                       .task_flags = rt->task_flags}));
    hand_over(entry, environment, log);
    return {};
  });
  if (entered != SPC_OK) give_up_entering();
  return entered;
}

int spc_task_stay_outside(spc_runtime*) {
  give_up_entering();
  return SPC_OK;
}

int spc_step_finish(spc_runtime* rt, uint32_t tasks, uint32_t killed) {
  return guard(rt, [&]() -> Result<void> {
    const auto done = rt->channel.finish(tasks, killed, [&](const char* line) {
      if (rt->log != nullptr) rt->log(SPC_LOG_INFO, line, rt->log_arg);
    });
    const auto stopped = rt->agent.stop(
        rt->channel);  // now: Slurm removes the step's cgroups before it closes the handle
    if (!stopped && rt->log != nullptr)
      rt->log(SPC_LOG_RECORD, stopped.error().message().c_str(), rt->log_arg);
    return done;
  });
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

const char* spc_version(void) { return SPC_VERSION; }
