#include "launch/launch.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <ctime>

#include "base/clock.hpp"
#include "image/reference/advice.hpp"
#include "image/reference/file_url.hpp"
#include "image/reference/location.hpp"
#include "launch/after/saver.hpp"
#include "launch/agent_line.hpp"
#include "launch/host/local_image.hpp"
#include "launch/in_container.hpp"
#include "launch/inside/missing_program.hpp"
#include "launch/inside/start_record.hpp"
#include "launch/leader_process.hpp"
#include "launch/task_context.hpp"

namespace spc {
namespace {

/// Whether the record of an image in the store, as the tasks are passed it, was made since `began`.
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

/// Returns the reason for not entering: in the words of the failed helper if it sent some, else
/// `error`.
Error why_not(const Error& error, const Arrival& arrival) {
  if (!arrival.failure.is_set()) return error;
  return arrival.agent_failed ? with_advice(arrival.failure.error()) : arrival.failure.error();
}

/// What a task says that can still see the user's files. The error may have a hint of its own,
/// which then comes first.
Result<TaskEntry> without_container(Error error, const TaskCall& call) {
  const auto asked = call.read(ReadAt::container);
  if (!asked || asked->verdict != Asked::enter) return error;
  if (removes(asked->request) && error.what() == kRemoved) return TaskEntry{.explained = true};
  const std::string& image = asked->request.image;
  const TaskContext task{asked->request, asked->job, call.step, call.log};
  if (error.what().starts_with("pull image ")) say_import(task, Event::import_fails);
  const auto number = asked->job.find("SLURM_LOCALID");
  const bool tells =
      number == asked->job.end() || number->second == "0";  // one line from each node
  if (tells)
    task.log.write(LogLevel::record,
                   failure_record(without_secrets(image), error.kind(), asked->job));
  const auto location = ImageLocation::parse(image);
  const bool at_registry = location && location->kind == ImageLocation::Kind::registry;
  const std::string advice = at_registry ? did_you_mean_file(image) : "";
  return advice.empty() ? advised(std::move(error), image)
                        : Error(error.kind(), error.message()).hint(advice);
}

std::string timing(const InContainer& in, const TaskMessage& ready, std::uint64_t start,
                   std::uint64_t entrypoint) {
  std::string line = timing_line(ready, start, in.spec.entrypoint.empty() ? 0 : entrypoint);
  const std::string of_hooks = in.hooks.timing(in.edits);
  return of_hooks.empty() ? line : line + "; " + of_hooks;
}

/// Slurm says of a missing program that there is no such file, for each task: before, the first one
/// says where it was looked for.
void tell_what_is_missing(const ContainerSpec& spec, const TaskContext& task) {
  const auto number = task.job.find("SLURM_PROCID");
  if (task.asked.command.empty() || number == task.job.end() || number->second != "0") return;
  const auto path = spec.environment.find("PATH");
  const std::string line = why_missing(
      task.asked.command[0], path == spec.environment.end() ? "" : path->second.value, spec.image);
  if (!line.empty()) task.log.write(LogLevel::notice, line);
}

/// The task is inside: decides the rest, runs the image's entrypoint, and says what Slurm is to
/// execute with.
Result<TaskEntry> finish(InContainer in, Arrival& arrival, const TaskCall& call, bool pulled,
                         std::uint64_t begin) {
  const TaskContext task{in.asked.request, in.asked.job, call.step, call.log};
  if (!arrival.led && !task.asked.name) say_import(task, Event::import_ends);
  SPC_TRY(decide_all(in.spec, {task.asked, in.site, in.hooks, in.edits}, task));
  if (task.asked.explain) {  // what another step has started
    for (const std::string& line : explain(in.spec, task.asked))
      task.log.write(LogLevel::info, line);
    return TaskEntry{.explained = true};
  }
  SPC_TRY(in.security.apply());
  const std::uint64_t before_entrypoint = now_us();
  SPC_TRY(Entrypoint(arrival).run(task.asked, in.site, arrival.notes, in.spec, task.log));
  tell_what_is_missing(in.spec, task);
  TaskEntry entry;
  entry.environment = change_to(in.spec.environment, task.job);
  const std::uint64_t end = now_us();
  entry.timing = timing(in, arrival.ready, end - begin, end - before_entrypoint);
  if (arrival.led && arrival.is_first) {
    const auto record = start_record(in.spec.image, in.as_on_host, in.spec, arrival.ready, pulled,
                                     end - begin, task.job);
    task.log.write(LogLevel::record, record);
  }
  if (task.save_path()) tell_saver_of_task(task.step);
  return entry;
}

}  // namespace

Result<TaskEntry> launch(const TaskCall& call) {
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
  // From here on the task has no capability, and may read.
  if (!arrived) return without_container(why_not(arrived.error(), arrival), call);
  const Led led = arrival.led.value_or(Led::joined);
  if (led == Led::outside) return TaskEntry{.outside = true};
  if (led != Led::set_up && led != Led::joined) return TaskEntry{.explained = true};
  const bool pulled = made_since(arrival.ready, began);
  auto in = SPC_TRY(read_inside(arrival, call));
  return finish(std::move(in), arrival, call, pulled, begin);
}

}  // namespace spc
