// The leader: reads all texts of a start, orders the container and sets its root up. The order is
// decided in container_order.cpp.

#include "launch/leader.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <exception>
#include <iterator>
#include <utility>
#include <vector>

#include "base/format.hpp"
#include "base/socket.hpp"
#include "launch/hooks/shell_hooks.hpp"
#include "launch/sources/slurm_client.hpp"
#include "launch/task/image_files.hpp"
#include "protocol/bytes_from.hpp"
#include "reference/location.hpp"
#include "request/container_name.hpp"
#include "task/entering/arrival.hpp"
#include "task/entering/enter.hpp"

namespace spc {

// --- leader process ---

namespace {

Result<void> ask_for_user_source(int task, int socket, const std::string& location) {
  LeaderMessage message;
  message.kind = LeaderMessage::start_user_source;
  message.location.set(location);
  const int passed[] = {socket};
  return send_struct(task, message, passed);
}

/// A log that holds lines back until it is known whether another leader repeats them.
class FirstLog final : public Log {
 public:
  FirstLog(Log& log, bool holds) : log_(log), holds_(holds) {}
  void write(LogLevel level, std::string_view line) noexcept override {
    if (!holds_) return log_.write(level, line);
    lines_.emplace_back(level, line);
  }
  void tell() {
    holds_ = false;
    for (const auto& [level, line] : std::exchange(lines_, {})) log_.write(level, line);
  }

 private:
  Log& log_;
  bool holds_;
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

Result<LeaderEnd> read_and_lead(const TaskCall& call, AgentLine& line, const LeaderStart& start,
                                bool& explains) {
  if (call.before_leading) call.before_leading(start.policy.manifest == Digest());
  const Asked asked = SPC_TRY(call.read(ReadAt::node));
  if (asked.verdict == Asked::outside) return LeaderEnd::outside;
  if (asked.verdict == Asked::left) return LeaderEnd::left;
  explains = asked.request.explain.has_value();
  FirstLog log(call.log, start.parent == ChildOf::us);
  const auto tell = [&] { log.tell(); };
  const TaskContext task{asked.request, asked.job, call.step, log, call.fail_step};
  auto led = Leader(task, line, start).lead(tell);
  if (!led || *led != LeaderEnd::again) tell();
  return led;
}

}  // namespace

int lead(const TaskCall& call, const LeaderStart& start) try {
  AgentLine line(UniqueFd(start.agent), call.style, call.log);
  line.user_source().start_for_podman([task = start.task](int socket, const std::string& location) {
    return ask_for_user_source(task, socket, location);
  });
  LeaderMessage message;
  const auto led = read_and_lead(call, line, start, message.explains);
  message.kind = led ? LeaderMessage::led : LeaderMessage::failed;
  if (led) message.how = *led;
  if (!led) message.error = WireError(line.fail(led.error()));
  return send_struct(start.task, message) ? 0 : 1;
} catch (const std::exception&) {  // out of memory: the task notices that the leader is gone
  return 1;
}

// --- agent line ---

Result<AgentMessage> AgentLine::await(std::initializer_list<TaskMessageKind> kinds) {
  for (;;) {
    SPC_TRY(user_source_.wait_for(socket_.get()));
    auto received = receive_from_agent(socket_.get());
    if (received && std::ranges::find(kinds, received->kind) != kinds.end()) return received;
    if (!received) {
      has_ended_ = true;
      return received;
    }
    switch (received->kind) {
      case TaskMessageKind::progress:
        if (received->text.view().starts_with(kPullRecord)) {
          if (take_record_) take_record_(received->text.view().substr(sizeof kPullRecord - 1));
          break;
        }
        // pyxis prints two lines per step, and scripts rely on their number.
        if (style_ == MessageStyle::own) log_.write(LogLevel::info, received->text.view());
        break;
      case TaskMessageKind::warning: log_.write(LogLevel::warning, received->text.view()); break;
      case TaskMessageKind::import_asks:
      case TaskMessageKind::serves:
      case TaskMessageKind::sources:
        if (answer_) SPC_TRY(answer_(*received));
        break;
      case TaskMessageKind::failed: has_ended_ = true; return received->failure.error();
      default:
        has_ended_ = true;
        return Error(ErrorKind::internal, "unexpected message from the agent");
    }
  }
}

Error AgentLine::fail(const Error& error) {
  if (has_ended_) return error;
  TaskMessage message;
  message.kind = TaskMessageKind::failed;
  message.failure = WireError(error);
  if (!send_struct(socket_.get(), message)) return agent_has_ended();
  return await({}).error();
}

// --- leader ---

/// Returns whether this is the script of a batch job whose steps alone run in containers.
bool Leader::stays_outside() const {
  if (request_.batch_script.empty()) return false;
  return (request_.batch.empty() ? entry_.site.batch : request_.batch) == "steps";
}

Result<LeaderEnd> Leader::lead(const std::function<void()>& stays) {
  SPC_TRY(complete_request());
  if (stays_outside()) return LeaderEnd::outside;
  auto context = hook_context(request_, task_.job, entry_.site);
  hooks_.emplace(SPC_TRY(find_hooks(std::move(context), task_.log)));
  const bool lasts =
      !removes(request_) && !request_.only_pull && (runs_stop_hooks() || task_.save_path());
  if (lasts && start_.parent == ChildOf::us) return LeaderEnd::again;
  stays();
  if (request_.only_pull) return pull();
  if (!removes(request_)) SPC_TRY(start_processes());
  if (request_.name) SPC_TRY(settle_name());
  if (removes(request_)) return remove_named();
  SPC_TRY(order());
  // Joining a running container without mounts needs no set-up.
  if (!joins() || !entry_.spec.root.mounts.empty() || saver_) return build();
  note_step();
  return LeaderEnd::joined;
}

bool Leader::runs_stop_hooks() const {
  return is_first() && !request_.explain && hooks_->has_stop();
}

/// Pulls the image without a container. The rules for images are those of a start; hooks, mounts
/// and the rest of the container do not apply.
Result<LeaderEnd> Leader::pull() {
  SPC_TRY(order());
  SPC_TRY(line_.await({TaskMessageKind::pulled}));
  return LeaderEnd::pulled;
}

/// Starts the processes that live on the host until all tasks have ended. `save` comes second, as
/// slurmstepd waits for one process only.
Result<void> Leader::start_processes() {
  const auto path = task_.save_path();
  if (runs_stop_hooks() || path) {
    const auto stop = [&](Log& to_user) {
      if (runs_stop_hooks()) hooks_->stop(to_user);
    };
    stop_process_ = SPC_TRY(StopProcess::start(task_.step, stop, task_.fail_step));
  }
  if (path) {
    const StepChannel& channel = stop_process_.channel_of_save(task_.step);
    const std::string name = request_.name ? request_.name->text : "";
    saver_ = SPC_TRY_DURING("--container-save",
                            Saver::start(channel, *path, name, *request_.style, task_.job));
  }
  importer_.set_program(entry_.site.importer);
  return {};
}

Result<void> Leader::settle_name() {
  const bool of_job = entry_.site.container_scope == "job";
  const bool sees_store = ::geteuid() == 0;
  if (!sees_store) note_ = ContainerNote::open(*request_.name, of_job, task_.job);
  const auto job = task_.job.find("SLURM_JOB_ID");
  SPC_TRY(named_.ask(*request_.name, job == task_.job.end() ? "" : job->second, of_job,
                     line_.socket()));
  for (;;) {
    auto answer = SPC_TRY(line_.await({TaskMessageKind::named}));
    if (SPC_TRY(named_.take_answer(answer, std::move(answer.descriptors), line_.socket())))
      return {};
  }
}

void Leader::note_step() {
  if ((entry_.spec.root.namespaces & own_user) == 0) return;
  note_.add_step(named_.notes(), step_name(task_.job), joins());
}

/// Removes the named container: the agent releases it and ends the other tasks of the step.
Result<LeaderEnd> Leader::remove_named() {
  note_.remove();
  auto removed = named_.remove();
  const bool is_missing = !removed && removed.error().kind() == ErrorKind::not_found;
  if (is_missing && request_.nodes > 1) {  // other nodes of the step may have it
    const auto node = task_.job.find("SLURMD_NODENAME");
    task_.log.write(LogLevel::notice,
                    formatted("{} has no container {} to remove",
                              node == task_.job.end() ? "this node" : printable(node->second),
                              in_quotes(request_.name->text)));
  } else if (is_missing) {
    const bool of_job = entry_.site.container_scope == "job";
    const std::string nodes = other_nodes_with(*request_.name, of_job, task_.job);
    if (nodes.empty()) return std::move(removed).error();
    return std::move(removed).error().hint(
        formatted("containers stay on their node, and {} has it: -w {}", nodes, nodes));
  } else {
    SPC_TRY(std::move(removed));
  }
  (void)line_.fail(Error(ErrorKind::not_found, "the container was removed", kRemovedErrno));
  return LeaderEnd::removed;
}

Result<void> Leader::order() {
  SPC_TRY(plan());
  if (saver_ && saves_layer(*task_.save_path())) image_below_ = SPC_TRY(image_below());
  std::uint32_t flags = 0;
  if (request_.only_pull) flags |= TaskMessage::start_pull;
  // With --container-explain no task enters: each leads, prints and exits.
  if (request_.private_layer || request_.explain) flags |= TaskMessage::start_private;
  if (saver_) flags |= TaskMessage::start_save;
  if (makes() && hooks_->runs_shell_hooks()) flags |= TaskMessage::start_hooks;
  line_.answer_by([this](AgentMessage& message) { return answer(message); });
  if (!image_.request.empty() && is_first()) {
    line_.take_records([this, image = without_secrets(request_.image)](std::string_view record) {
      task_.log.write(LogLevel::record, pull_record(image, record, task_.job));
    });
  }
  SPC_TRY(send_start(flags));
  add_user();
  if (makes()) stop_process_.confirm();
  return {};
}

Result<void> Leader::answer(AgentMessage& message) {
  if (message.kind == TaskMessageKind::sources) return send_sources();
  if (message.descriptors.size() != 1)
    return Error(ErrorKind::internal, "no line to import or to a server");
  if (message.kind == TaskMessageKind::serves)
    return send_file(message.index, message.descriptors.front().get());
  UniqueFd import = std::move(message.descriptors.front());
  SPC_TRY(send_message(import.get(), std::as_bytes(std::span(image_.request)), {}));
  line_.user_source().prepare(std::move(import), location_, task_.job, request_.tracker);
  return {};
}

/// Returns the image whose changes can be saved as a layer: it must be from a registry, and the
/// container must have no changes yet.
Result<std::string> Leader::image_below() const {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorKind::refused, "save the changes as a layer: " + why)
        .hint("save the whole container: --container-save=FILE.sqsh");
  };
  if (request_.name && !named_.is_new())
    return refuse("the container has changes of earlier steps");
  const ContainerSpec& spec = entry_.spec;
  const auto location = ImageLocation::parse(spec.image);
  if (spec.from != ContainerSpec::From::store || !location ||
      location->kind != ImageLocation::Kind::registry)
    return refuse("the image is not one of a registry");
  return location->name.canonical();
}

/// Waits for the ordered container and sets its root up.
Result<LeaderEnd> Leader::build() {
  auto message = SPC_TRY(line_.await({TaskMessageKind::hooks, TaskMessageKind::set_up}));
  // The builder has the files.
  image_.file.reset();
  for (Mount& mount : entry_.spec.root.mounts) mount.source.reset();
  if (message.kind == TaskMessageKind::hooks) {
    SPC_TRY(run_shell_hooks(std::move(message)));
    message = SPC_TRY(line_.await({TaskMessageKind::set_up}));
  }
  if (auto done = set_up(message); !done) {
    take_back();
    return std::move(done).error();
  }
  if (saver_) {
    const auto root = SPC_TRY(line_.await({TaskMessageKind::to_save}));
    if (root.descriptors.size() != 1) return Error(ErrorKind::internal, "no root to save");
    const int record = message.descriptors[1].get();
    SPC_TRY(
        saver_.give(root.descriptors.front().get(), record, entry_.spec.settings, image_below_));
    SPC_TRY(send_struct(line_.socket(), TaskMessage{.kind = TaskMessageKind::to_save}));
  }
  if (!request_.explain) {
    // Without it the step lacks a line at its end.
    if (reports_) (void)report_at_end(stop_process_.channel_of_report(task_.step), end_);
    return LeaderEnd::set_up;
  }
  SPC_TRY(explain_instead());
  return LeaderEnd::explained;
}

Result<void> Leader::run_shell_hooks(AgentMessage message) {
  if (message.descriptors.size() != 4) return Error(ErrorKind::internal, "no root for hooks");
  ContainerSpec& spec = entry_.spec;
  SPC_TRY(add_image_record(spec, message.descriptors[1].get(), message.manifest));
  const ShellHookStart start{request_, task_.job, entry_.site, spec};
  by_shell_hooks_ = SPC_TRY(run_shell_hooks_in_step(
      hooks_->shell_hooks(), start, message.descriptors, spec.root, line_.socket(), task_.log));
  return {};
}

Result<void> Leader::set_up(const AgentMessage& message) {
  if (message.descriptors.size() != 2) return Error(ErrorKind::internal, "no root to set up");
  line_.user_source().stop();  // before the container is entered
  importer_.release();         // the container has the image open
  if (!request_.name || named_.plan() == NamePlan::make) say_import(task_, Event::import_ends);
  ContainerSpec& spec = entry_.spec;
  SPC_TRY(add_image_record(spec, message.descriptors[1].get(), message.manifest));
  add_image(hooks_->context(), spec);
  if (makes()) SPC_TRY(hooks_->create_on_host(entry_.edits));
  if (request_.explain) SPC_TRY(hooks_->task_on_host());
  const bool asks_host = hooks_->asks_host();
  reports_ = collect_end_facts();
  SPC_TRY(enter_root(message.descriptors[0].get()));
  return set_up_inside(message.manifest, asks_host);
}

/// `asks_host`: TaskMessage::asks_host.
Result<void> Leader::set_up_inside(const Digest& manifest, bool asks_host) {
  ContainerSpec& spec = entry_.spec;
  if (spec.settings.in_files) read_image_files(task_.job, spec.settings, &task_.log);
  if (request_.workdir.empty())
    spec.root.directories.push_back(workdir_of(request_, spec.settings));
  SPC_TRY(named_.write(manifest));
  note_.write(named_.notes(), named_.is_new());
  note_step();
  entry_.step = TaskEntry::step_of(task_.job);
  entry_.wishes = task_.asked.environment;
  entry_.workdir = request_.workdir;
  if (makes()) {
    SPC_TRY(create_edits(*hooks_, spec, entry_.edits, spec.root));
    std::ranges::move(by_shell_hooks_.of_hooks, std::back_inserter(entry_.edits.of_hooks));
  }
  SPC_TRY(entry_.write(start_.notes));
  const bool has_commands = request_.slurm.value_or(false) || request_.batch_script.empty();
  if (entry_.site.failure_hints && makes() && !has_commands && !request_.name && !saver_ &&
      spec.from != ContainerSpec::From::directory)
    add_slurm_stubs(spec.root);
  for (const std::string& warning : SPC_TRY(set_up_root(spec.root, attach_by(line_.socket()))))
    task_.log.write(LogLevel::warning, warning);
  if (makes() && !request_.explain) SPC_TRY(hooks_->start());
  TaskMessage done{.kind = TaskMessageKind::set_up_done, .asks_host = asks_host};
  done.text.set(spec.user.for_other_tasks());
  return send_struct(line_.socket(), done);
}

/// Explains the container instead of starting it. Discards a name that did not exist before.
Result<void> Leader::explain_instead() {
  SPC_TRY(decide_all(entry_, *hooks_, request_, task_));
  print_explanation(explain(entry_.spec, request_, entry_.site, task_.job), *request_.explain,
                    task_.log);
  take_back();
  return {};
}

bool Leader::collect_end_facts() {
  const SitePolicy& site = entry_.site;
  const ContainerSpec& spec = entry_.spec;
  if (request_.explain || !is_first() || !makes()) return false;
  const auto of_job = [&](const char* name) {
    const auto found = task_.job.find(name);
    return found == task_.job.end() ? std::string() : found->second;
  };
  end_.explains = site.failure_hints;
  end_.prefix = message_prefix(*request_.style);
  end_.has_own_layer = spec.writable && !request_.name && !saver_;
  end_.tmpfs_size = upper_size_;
  const std::string node = of_job("SLURM_NODEID");
  end_.is_first_node = node.empty() || node == "0";
  if (request_.nodes > 1) end_.tracker = request_.tracker;
  end_.srun = of_job("SLURM_LAUNCH_NODE_IPADDR");
  end_.node = of_job("SLURMD_NODENAME");
  const bool is_remapped = (spec.namespaces & own_user) != 0;
  char here[PATH_MAX];
  end_.host_directory = ::getcwd(here, sizeof here) != nullptr ? here : "/";
  end_.host.reset(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  end_.workdir = workdir_of(request_, spec.settings);
  end_.command = task_.asked.command;
  end_.batch_script = request_.batch_script;
  const bool tells_files = end_.is_first_node && *request_.style == MessageStyle::own;
  end_.discarded = tells_files ? site.discarded_files : 0;
  end_.places = {end_.workdir, end_.host_directory, "/workspace",
                 is_remapped ? spec.user.as_root().home : spec.user.home};
  const auto is_pmi = [](const auto& variable) {
    return variable.first.starts_with("PMI_") || variable.first.starts_with("PMIX_");
  };
  const std::string tasks = of_job("SLURM_STEP_NUM_TASKS");
  end_.is_one_task = tasks == "1";
  end_.has_pmi = tasks.empty() || std::any_of(task_.job.begin(), task_.job.end(), is_pmi);
  return end_.host && (end_.explains || (end_.has_own_layer && end_.discarded > 0));
}

void Leader::take_back() {
  named_.take_back();
  if (named_.is_new()) note_.remove();
}

}  // namespace spc
