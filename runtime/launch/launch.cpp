#include "launch/launch.hpp"

#include "base/clock.hpp"
#include "launch/agent_line.hpp"
#include "launch/in_container.hpp"
#include "launch/inside/start_record.hpp"
#include "launch/leader.hpp"
#include "task/fake_root.hpp"

namespace spc {
namespace {

/// What is executed: environment, work directory, what hooks say for this task.
Result<void> decide_all(InContainer& in, const TaskContext& task) {
  ContainerSpec& spec = in.spec;
  if ((in.ready.namespaces & own_user) != 0) {
    spec.user = spec.user.as_root();
    SPC_TRY(fake_root_calls());
  }
  if (!in.request.name || in.named.plan() == NamePlan::make) say_import(task, Event::import_ends);
  decide(spec, in.request, in.site, task.job);
  tell_image(task.asked.image, spec);
  SPC_TRY(in.hooks.apply(in.edits, spec, task.log));
  return enter_workdir(spec, in.request);
}

/// Nothing is kept under a name that did not exist.
void explain_instead(InContainer& in, Log& log) {
  for (const std::string& line : explain(in.spec, in.request)) log.write(LogLevel::info, line);
  in.named.take_back();
}

std::string timing(const InContainer& in, std::uint64_t start, std::uint64_t entrypoint) {
  std::string line = timing_line(in.ready, start, in.spec.entrypoint.empty() ? 0 : entrypoint);
  const std::string of_hooks = in.hooks.timing(in.edits);
  return of_hooks.empty() ? line : line + "; " + of_hooks;
}

/// The task is inside: decides the rest, runs the image's entrypoint, and says what Slurm is to execute with.
Result<TaskEntry> enter(InContainer in, const TaskContext& task, std::uint64_t begin) {
  SPC_TRY(decide_all(in, task));
  const bool explains = in.request.explain;
  if (explains) explain_instead(in, task.log);
  const std::uint64_t before_entrypoint = now_us();
  SPC_TRY(in.entrypoint.run(in.request, in.notes, in.spec, task.log));
  TaskEntry entry;
  entry.explained = explains;
  entry.environment = change_to(in.spec.environment, task.job);
  const std::uint64_t end = now_us();
  entry.timing = timing(in, end - begin, end - before_entrypoint);
  if (in.recorded_as && !explains) {
    const auto record = start_record(in.spec.image, *in.recorded_as, in.spec, in.ready, end - begin, task.job);
    task.log.write(LogLevel::record, record);
  }
  if (task.save_path()) tell_saver_of_task(task.step);
  return entry;
}

}  // namespace

Result<TaskEntry> launch(const LaunchRequest& asked, const std::map<std::string, std::string>& job,
                         const StepChannel& step, Log& log, const std::function<void()>& before_entering) {
  const std::uint64_t begin = now_us();
  const TaskContext task{asked, job, step, log, before_entering};
  KnownSite site(asked);
  AgentLine line(SPC_TRY(AgentLine::join(step)), task, site);

  auto first = SPC_TRY(line.await({TaskMessageKind::lead, TaskMessageKind::ready}));
  if (first.kind == TaskMessageKind::ready) {
    return enter(SPC_TRY(follow(std::move(first), task, site)), task, begin);
  }
  Leader leader(task, line, site);
  auto led = leader.lead(std::move(first));
  if (!led) return line.fail(led.error());
  if (!*led) return TaskEntry{};
  return enter(**std::move(led), task, begin);
}

}  // namespace spc
