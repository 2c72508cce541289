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
#include "task/enter.hpp"

namespace spc {
namespace {

/// The step's container, from the first word of the agent until it is ready.
struct Waited {
  std::optional<Led> led;  ///< by a process of this task; nothing: it follows
  bool is_first = false;   ///< of all that lead on this node
  bool pulled = false;     ///< the image's record is younger than the start
  AgentMessage ready;
};

/// Whether the record of an image in the store, as the tasks are passed it, was made since `began`.
bool made_since(const AgentMessage& ready, const timespec& began) {
  struct statx status {};
  if (ready.manifest == Digest() || ready.descriptors.size() < 2) return false;
  if (::statx(ready.descriptors[1].get(), "", AT_EMPTY_PATH, STATX_BTIME, &status) != 0) return false;
  const auto& made = status.stx_btime;
  const bool later = made.tv_sec > began.tv_sec || (made.tv_sec == began.tv_sec && made.tv_nsec >= began.tv_nsec);
  return (status.stx_mask & STATX_BTIME) != 0 && later;
}

Result<Waited> wait_until_ready(const TaskCall& call, Entrypoint& entrypoint, EndingLeader& leader) {
  AgentLine line(SPC_TRY(AgentLine::join(call.step)), call.style, call.log);
  Waited waited;
  waited.ready = SPC_TRY(line.await({TaskMessageKind::lead, TaskMessageKind::ready}));
  if (waited.ready.kind == TaskMessageKind::ready) return waited;
  waited.is_first = waited.ready.manifest == Digest();
  waited.led = SPC_TRY(run_leader(call, line, waited.ready, entrypoint, leader));
  const bool has_container = *waited.led != Led::outside && *waited.led != Led::pulled && *waited.led != Led::removed;
  if (has_container) waited.ready = SPC_TRY(line.await({TaskMessageKind::ready}));
  return waited;
}

/// What a task says that can still see the user's files. The error may have a hint of its own, which then comes first.
Result<TaskEntry> without_container(Error error, const TaskCall& call) {
  if (!give_up_privilege()) return error;
  const auto asked = call.read(ReadAt::container);
  if (!asked) return error;
  if (removes(asked->request) && error.what() == kRemoved) return TaskEntry{.explained = true, .environment = {}, .timing = {}};
  const std::string& image = asked->request.image;
  const TaskContext task{asked->request, asked->job, call.step, call.log};
  if (error.what().starts_with("pull image ")) say_import(task, Event::import_fails);
  const auto number = asked->job.find("SLURM_LOCALID");
  const bool tells = number == asked->job.end() || number->second == "0";  // one line from each node
  if (tells) task.log.write(LogLevel::record, failure_record(without_secrets(image), error.kind(), asked->job));
  const auto location = ImageLocation::parse(image);
  const bool at_registry = location && location->kind == ImageLocation::Kind::registry;
  const std::string advice = at_registry ? did_you_mean_file(image) : "";
  return advice.empty() ? advised(std::move(error), image) : Error(error.kind(), error.message()).hint(advice);
}

std::string timing(const InContainer& in, const TaskMessage& ready, std::uint64_t start, std::uint64_t entrypoint) {
  std::string line = timing_line(ready, start, in.spec.entrypoint.empty() ? 0 : entrypoint);
  const std::string of_hooks = in.hooks.timing(in.edits);
  return of_hooks.empty() ? line : line + "; " + of_hooks;
}

/// Slurm says of a missing program that there is no such file, for each task: before, the first one says where it was looked for.
void tell_what_is_missing(const ContainerSpec& spec, const TaskContext& task) {
  const auto number = task.job.find("SLURM_PROCID");
  if (task.asked.command.empty() || number == task.job.end() || number->second != "0") return;
  const auto path = spec.environment.find("PATH");
  const std::string line =
      why_missing(task.asked.command[0], path == spec.environment.end() ? "" : path->second.value, spec.image);
  if (!line.empty()) task.log.write(LogLevel::notice, line);
}

/// The task is inside: decides the rest, runs the image's entrypoint, and says what Slurm is to execute with.
Result<TaskEntry> finish(InContainer in, const Waited& waited, Entrypoint& entrypoint, const TaskCall& call,
                         std::uint64_t begin) {
  const TaskContext task{in.asked.request, in.asked.job, call.step, call.log};
  if (!waited.led && !task.asked.name) say_import(task, Event::import_ends);
  SPC_TRY(decide_all(in.spec, {task.asked, in.site, in.hooks, in.edits}, task));
  if (task.asked.explain) {  // what another step has started
    for (const std::string& line : explain(in.spec, task.asked)) task.log.write(LogLevel::info, line);
    return TaskEntry{.explained = true, .environment = {}, .timing = {}};
  }
  SPC_TRY(in.security.apply());
  const std::uint64_t before_entrypoint = now_us();
  SPC_TRY(entrypoint.run(task.asked, in.site, in.notes, in.spec, task.log));
  tell_what_is_missing(in.spec, task);
  TaskEntry entry;
  entry.environment = change_to(in.spec.environment, task.job);
  const std::uint64_t end = now_us();
  entry.timing = timing(in, waited.ready, end - begin, end - before_entrypoint);
  if (waited.led && waited.is_first) {
    const auto record = start_record(in.spec.image, in.as_on_host, in.spec, waited.ready, waited.pulled, end - begin, task.job);
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
  SPC_TRY(keep_nothing_else());
  auto entrypoint = Entrypoint::with_probe();
  EndingLeader leader;  // it ends while we enter
  auto waited = wait_until_ready(call, entrypoint, leader);
  if (!waited) return without_container(waited.error(), call);
  if (waited->led == Led::outside) {
    SPC_TRY(stay_outside());
    return TaskEntry{};
  }
  if (waited->led == Led::explained || waited->led == Led::pulled || waited->led == Led::removed) {
    return TaskEntry{.explained = true, .environment = {}, .timing = {}};
  }
  if ((waited->ready.namespaces & own_pid) != 0) leader.await();  // another process of ours enters, and is not its parent
  if (call.before_entering) call.before_entering();
  waited->pulled = made_since(waited->ready, began);
  auto in = SPC_TRY(enter(std::move(waited->ready), call));
  return finish(std::move(in), *waited, entrypoint, call, begin);
}

}  // namespace spc
