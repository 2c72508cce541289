// The task's part of a start: decides environment and work directory inside the container, and
// reports failures.

#include "launch/launch.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>

#include "base/clock.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "launch/leader.hpp"
#include "launch/site/enroot_compat.hpp"
#include "launch/sources/image_order.hpp"
#include "launch/sources/slurm_client.hpp"
#include "launch/step_end.hpp"
#include "launch/task/entrypoint.hpp"
#include "launch/task/image_files.hpp"
#include "launch/task/task_notes.hpp"
#include "reference/location.hpp"
#include "reference/reference.hpp"
#include "task/security.hpp"

namespace spc {

// --- task context ---

std::optional<std::string> TaskContext::save_path() const {
  return asked.save.empty() || asked.explain ? std::nullopt : save_path_here(asked.save, job);
}

void say_import(const TaskContext& task, Event event) {
  const LaunchRequest& asked = task.asked;
  const auto location = ImageLocation::parse(asked.image);
  if (*asked.style == MessageStyle::own || !location) return;
  if (location->kind == ImageLocation::Kind::path) return;
  const auto tasks = task.job.find("SLURM_STEP_NUM_TASKS");
  const bool one_task = tasks != task.job.end() && tasks->second == "1";
  const bool alone = !asked.batch_script.empty() || one_task;
  if (event == Event::import_begins && !alone) return;
  task.log.write(LogLevel::notice, in_words_of_pyxis(event, without_secrets(asked.image)));
}

// --- in container ---

namespace {

/// Returns the site's settings and this user's enroot files. Another step with other settings may
/// have started the container.
Result<SitePolicy> own_site(const Asked& asked) {
  auto site = SitePolicy::read();
  site.override_with(asked.request.overrides);
  SPC_TRY(add_enroot_files(site, asked.job, nullptr));
  return site;
}

/// Completes the description of a container that is ready.
Result<void> complete(ContainerSpec& spec, const AgentMessage& ready) {
  spec.namespaces = ready.namespaces;
  spec.user = UserIdentity::from_first_task(ready.text.view());
  return add_image_record(spec, ready.descriptors[1].get(), ready.manifest);
}

/// Returns the hooks' context by the container's properties instead of the requested ones.
HookContext context_of(Asked& asked, const TaskEntry& entry) {
  asked.request.namespaces = entry.spec.namespaces & ~std::uint32_t{own_user};
  asked.request.remap_root = (entry.spec.namespaces & own_user) != 0;
  asked.request.writable = entry.spec.writable;
  return hook_context(asked.request, asked.job, entry.site);
}

/// On the host, without privilege: writes the site's settings, the hooks' output for this task, and
/// the variables that the user requests into `answer`.
Result<void> answer_for_host(const Arrival& arrival, const TaskCall& call, int answer) {
  Asked asked = SPC_TRY(call.read(ReadAt::node));
  auto entry = SPC_TRY(TaskEntry::read(arrival.notes.get()));
  entry.wishes = asked.request.environment;
  if (asked.request.mount_cwd.value_or(false)) asked.request.mount_work_directory();
  entry.workdir = asked.request.workdir;
  if (entry.step != TaskEntry::step_of(asked.job)) entry.site = SPC_TRY(own_site(asked));
  SPC_TRY(complete(entry.spec, arrival.ready));
  auto hooks = SPC_TRY(StepHooks::find_for_task(context_of(asked, entry), entry.edits, call.log));
  add_image(hooks.context(), entry.spec);
  entry.edits = SPC_TRY(hooks.ask_host());
  return entry.write(answer);
}

/// Sets what container-helper executes under the name "@run".
Result<void> set_own_program(ContainerSpec& spec, const LaunchRequest& request) {
  std::string text;
  for (const std::string& word : own_program_of(spec.settings, request.command.size() > 1))
    text += std::to_string(word.size()) + ":" + word;
  if (text.empty() && request.command.size() < 2) {
    return Error(ErrorKind::invalid, formatted("execute {}: image {} has no program of its own",
                                               in_quotes(kOwnProgram), in_quotes(spec.image)))
        .hint("name one: srun … PROGRAM");
  }
  spec.environment[kOwnProgramVariable].value = std::move(text);
  if (spec.settings.environment_scripts.empty()) spec.entrypoint.clear();  // does not run twice
  return {};
}

}  // namespace

Result<void> decide_all(TaskEntry& entry, StepHooks& hooks, const LaunchRequest& request,
                        const TaskContext& task) {
  ContainerSpec& spec = entry.spec;
  if ((spec.namespaces & own_user) != 0) {
    spec.user = spec.user.as_root();
    SPC_TRY(fake_root_calls());
  }
  decide(spec, request, entry.site, task.job);
  const bool is_own_program = !request.command.empty() && request.command[0] == kOwnProgram;
  if ((is_own_program || !request.batch_script.empty()) && ::access(kSlurmStubs, F_OK) == 0)
    spec.environment["PATH"].value += ":" + std::string(kSlurmStubs);
  if (is_own_program) SPC_TRY(set_own_program(spec, request));
  tell_image(without_secrets(task.asked.image), spec);
  tell_name(task.asked.name, spec);
  tell_prompt(spec);
  SPC_TRY(apply_edits(entry.edits, hooks, spec, task.log));
  return enter_workdir(spec, request);
}

// --- launch ---

namespace {

/// Returns whether the image record was created after `began`, that is, by this start.
bool made_since(const AgentMessage& ready, const timespec& began) {
  struct statx status {};
  if (ready.manifest == Digest() || ready.descriptors.size() < 2) return false;
  if (::statx(ready.descriptors[1].get(), "", AT_EMPTY_PATH, STATX_BTIME, &status) != 0)
    return false;
  const auto& made = status.stx_btime;
  const bool later =
      made.tv_sec > began.tv_sec || (made.tv_sec == began.tv_sec && made.tv_nsec >= began.tv_nsec);
  return (status.stx_mask & STATX_BTIME) != 0 && later;
}

/// Returns the outcome without a container, by default the failed helper's error, and prints what
/// needs the user's files, before the task loses sight of them. A hint of the error itself comes
/// first.
Result<std::optional<EnvironmentChange>> without_container(Error error, const Arrival& arrival,
                                                           const TaskCall& call) {
  if (arrival.failure.is_set()) error = arrival.failure.error();
  const auto asked = call.read(ReadAt::container);
  if (!asked || asked->verdict != Asked::enter) return error;
  if (removes(asked->request) && error.sys_errno() == kRemovedErrno)
    return std::optional<EnvironmentChange>();
  const std::string& image = asked->request.image;
  const TaskContext task{asked->request, asked->job, call.step, call.log, call.fail_step};
  if (error.is_of_pull()) say_import(task, Event::import_fails);
  const auto number = asked->job.find("SLURM_LOCALID");
  const bool tells =
      number == asked->job.end() || number->second == "0";  // one line from each node
  if (tells)
    task.log.write(LogLevel::record,
                   failure_record(without_secrets(image), error.kind(), asked->job));
  const auto location = ImageLocation::parse(image);
  const bool at_registry = location && location->kind == ImageLocation::Kind::registry;
  const std::string advice = at_registry ? did_you_mean_file(image) : "";
  return advice.empty() ? advised(std::move(error), image, arrival.ready.policy.default_registry)
                        : Error(error.kind(), error.message()).hint(advice);
}

/// Reports a program that cannot be executed, once, with the searched places or the cure. Slurm
/// reports only the system call's error, for each task.
void tell_what_is_missing(const ContainerSpec& spec, const TaskContext& task) {
  const auto variable = [&](const char* name) {
    const auto found = task.job.find(name);
    return found == task.job.end() ? std::string() : found->second;
  };
  if (variable("SLURM_LOCALID") != "0") return;  // the node's first task speaks for all
  std::vector<std::uint32_t> ranks;
  const std::string numbers = variable("SLURM_GTIDS");
  for (const std::string_view rank : split(numbers, ','))
    ranks.push_back(parse_number(rank).value_or(0));
  const auto path = spec.environment.find("PATH");
  const std::string along = path == spec.environment.end() ? "" : path->second.value;
  for (const std::string& program : programs_told_by(ranks, task.asked.command)) {
    const std::string line =
        why_missing(program, along, spec.image, task.asked.mount_cwd.value_or(false));
    if (!line.empty()) task.log.write(LogLevel::notice, line);
  }
}

/// Completes the start inside: reads the user's request and the leader's notes, decides the rest,
/// and runs the image's entrypoint.
Result<std::optional<EnvironmentChange>> start_task(Arrival& arrival, const TaskCall& call,
                                                    bool pulled, std::uint64_t begin) {
  Asked asked = SPC_TRY(call.read(ReadAt::container));
  auto entry = SPC_TRY(TaskEntry::read(arrival.notes.get()));
  TaskEntry of_host;
  if (arrival.answer) {
    of_host = SPC_TRY(TaskEntry::read(arrival.answer.get()));
    // Another step may have started the container.
    entry.wishes = std::move(of_host.wishes);
    entry.site = std::move(of_host.site);
    entry.workdir = std::move(of_host.workdir);
  }
  LaunchRequest& request = asked.request;
  request.workdir = std::move(entry.workdir);
  request.environment = std::move(entry.wishes);
  *request.style = message_style(entry.site);
  SPC_TRY(entry.security.check(request));
  request.entrypoint_log = request.entrypoint_log || entry.site.entrypoint_log;
  ContainerSpec& spec = entry.spec;
  SPC_TRY(complete(spec, arrival.ready));
  // No log: the leader has already reported skipped lines.
  if (spec.settings.in_files) read_image_files(asked.job, spec.settings, nullptr);
  auto hooks =
      StepHooks::inside(context_of(asked, entry), entry.edits, std::move(of_host.edits), call.log);
  const UserIdentity on_host = spec.user;
  const TaskContext task{request, asked.job, call.step, call.log, call.fail_step};
  if (!arrival.led && !request.name) say_import(task, Event::import_ends);
  SPC_TRY(decide_all(entry, hooks, request, task));
  if (request.explain) {  // a container that another step has started
    const auto lines = explain(spec, request, entry.site, asked.job);
    print_explanation(lines, *request.explain, call.log);
    return std::optional<EnvironmentChange>();
  }
  SPC_TRY(entry.security.apply());
  const std::uint64_t before_entrypoint = now_us();
  SPC_TRY(Entrypoint(arrival).run(request, entry.site, arrival.notes, spec, call.log));
  tell_what_is_missing(spec, task);
  const std::uint64_t end = now_us();
  if (arrival.led && arrival.is_first) {
    const auto record =
        start_record(spec.image, on_host, spec, arrival.ready, pulled, end - begin, asked.job);
    call.log.write(LogLevel::record, record);
  }
  tell_saver_of_task(call.step);
  const std::string of_hooks = hooks.timing(entry.edits);
  call.log.write(LogLevel::debug,
                 timing_line(arrival.ready, end - begin,
                             spec.entrypoint.empty() ? 0 : end - before_entrypoint) +
                     (of_hooks.empty() ? "" : "; " + of_hooks));
  return std::optional(change_to(spec.environment, asked.job));
}

}  // namespace

Result<std::optional<EnvironmentChange>> launch(const TaskCall& call) {
  const std::uint64_t begin = now_us();
  timespec began{};
  ::clock_gettime(CLOCK_REALTIME, &began);
  Arrival arrival;
  const auto arrived =
      arrive({.step = call.step.tasks.get(),
              .agent_group = call.agent_group,
              .variables = call.variables,
              .task_flags = call.task_flags,
              .lead = [&](const LeaderStart& start) { return lead(call, start); },
              .ask_host = [&](const Arrival& now,
                              int answer) { return answer_for_host(now, call, answer); },
              .before_entering = call.before_entering},
             arrival);
  // From here on the task has no capability and may read the user's texts.
  if (!arrived) return without_container(arrived.error(), arrival, call);
  const LeaderEnd led = arrival.led.value_or(LeaderEnd::joined);
  if (led == LeaderEnd::outside) return std::optional(EnvironmentChange());
  if (led != LeaderEnd::set_up && led != LeaderEnd::joined)
    return std::optional<EnvironmentChange>();
  return start_task(arrival, call, made_since(arrival.ready, began), begin);
}

}  // namespace spc
