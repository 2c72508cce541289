#include "launch/leader.hpp"

#include <unistd.h>

#include "base/socket.hpp"
#include "image/reference/file_url.hpp"
#include "image/reference/location.hpp"
#include "launch/hooks/shell_hooks.hpp"
#include "launch/inside/image_files.hpp"
#include "launch/inside/start_record.hpp"
#include "launch/request/save_path.hpp"
#include "task/entering/enter.hpp"
#include "task/entering/visit.hpp"

namespace spc {
namespace {

/// Whether this is the script of a batch job of which only the steps run in containers.
bool is_to_stay_outside(const Terms& terms) {
  const LaunchRequest& request = terms.request;
  if (request.batch_script.empty()) return false;
  return (request.batch.empty() ? terms.site.batch : request.batch) == "steps";
}

}  // namespace

Result<Led> Leader::lead(const AgentMessage& policy, const std::function<void()>& stays) {
  Terms terms = SPC_TRY(read_terms(task_, policy));
  if (is_to_stay_outside(terms)) return Led::outside;
  auto context = hook_context(terms.request, task_.job, terms.site);
  auto hooks = SPC_TRY(TaskHooks::find(std::move(context), task_.log));
  const bool lasts = !removes(terms.request) && !terms.request.only_pull &&
                     (runs_stop_hooks(terms, hooks) || task_.save_path());
  if (lasts && parent_ == ChildOf::us) return Led::again;
  stays();
  if (terms.request.only_pull) return pull(terms, hooks);
  if (!removes(terms.request)) SPC_TRY(start_processes(terms, hooks));
  if (terms.request.name) SPC_TRY(settle_name(terms));
  if (removes(terms.request)) return remove_named();
  auto container = SPC_TRY(order(terms, hooks));
  // One that runs already, and gets nothing added, is ready at once.
  if (container.root.container_runs && container.root.targets.empty() && !saver_)
    return Led::joined;
  return build(terms, hooks, container);
}

bool Leader::runs_stop_hooks(const Terms& terms, const TaskHooks& hooks) const {
  return terms.is_first() && !terms.request.explain && hooks.has_stop();
}

/// The rules for images are those of a start; what hooks do, mounts and the rest of a container
/// have no part in it.
Result<Led> Leader::pull(const Terms& terms, TaskHooks& hooks) {
  (void)SPC_TRY(order(terms, hooks));
  SPC_TRY(line_.await({TaskMessageKind::pulled}));
  return Led::pulled;
}

/// What lives on the host until all tasks have ended. `save` comes second: there can be but one
/// process that slurmstepd waits for.
Result<void> Leader::start_processes(const Terms& terms, const TaskHooks& hooks) {
  const LaunchRequest& request = terms.request;
  if (runs_stop_hooks(terms, hooks)) {
    const auto stop = [&](Log& to_user) { hooks.stop(to_user); };
    stop_process_ = SPC_TRY(StopProcess::start(task_.step, stop));
  }
  if (const auto path = task_.save_path()) {
    const StepChannel& channel = stop_process_.channel_of_save(task_.step);
    const std::string name = request.name ? request.name->text : "";
    saver_ = SPC_TRY_DURING("--container-save",
                            Saver::start(channel, *path, name, *request.style, task_.job));
  }
  importer_.set_program(terms.site.importer);
  return {};
}

Result<void> Leader::settle_name(const Terms& terms) {
  const bool of_job = terms.site.container_scope == "job";
  const bool sees_store = ::geteuid() == 0;
  if (!sees_store) note_ = ContainerNote::open(*terms.request.name, of_job, task_.job);
  SPC_TRY(named_.ask(*terms.request.name, of_job, line_.socket()));
  for (;;) {
    auto answer = SPC_TRY(line_.await({TaskMessageKind::named}));
    if (SPC_TRY(named_.take_answer(answer, std::move(answer.descriptors), line_.socket())))
      return {};
  }
}

/// The agent lets go of the container, and tells the other tasks of the step.
Result<Led> Leader::remove_named() {
  note_.remove();
  SPC_TRY(named_.remove());
  (void)line_.fail(Error(ErrorKind::not_found, kRemoved));
  return Led::removed;
}

Result<Leader::Ordered> Leader::order(const Terms& terms, TaskHooks& hooks) {
  Ordered container;
  ContainerOrder& order = order_ =
      SPC_TRY(plan_container({task_, terms, named_, hooks, importer_}));
  if (saver_ && saves_layer(*task_.save_path()))
    container.image_below = SPC_TRY(image_below(terms, order.spec));
  std::uint32_t flags = 0;
  if (terms.request.only_pull) flags |= TaskMessage::start_pull;
  // With --container-explain the others have nothing to enter for: they lead, and leave.
  if (terms.request.private_layer || terms.request.explain) flags |= TaskMessage::start_private;
  if (saver_) flags |= TaskMessage::start_save;
  if (order.hooks && PreparedHooks::runs_shell_hooks(hooks)) flags |= TaskMessage::start_hooks;
  line_.answer_by([this, meeting = terms.request.meeting](AgentMessage& message) {
    return answer(message, meeting);
  });
  if (!order.image.request.empty() && terms.is_first()) {
    line_.take_records(
        [this, image = without_secrets(terms.request.image)](std::string_view record) {
          task_.log.write(LogLevel::record, pull_record(image, record, task_.job));
        });
  }
  SPC_TRY(send(order, flags, line_.socket()));
  container.root = root_setup(order, named_, task_.job);
  container.spec = std::move(order.spec);
  container.security = std::move(order.security);
  container.hooks = std::move(order.hooks);
  if (container.hooks) stop_process_.confirm();
  return container;
}

Result<void> Leader::answer(AgentMessage& message, const std::string& meeting) {
  if (message.kind == TaskMessageKind::sources) return send_sources(order_, line_.socket());
  if (message.descriptors.size() != 1)
    return Error(ErrorKind::internal, "no line to import or to a server");
  if (message.kind == TaskMessageKind::serves)
    return send_file(order_, message.index, message.descriptors.front().get());
  UniqueFd import = std::move(message.descriptors.front());
  SPC_TRY(send_message(import.get(), std::as_bytes(std::span(order_.image.request)), {}));
  line_.user_source().prepare(std::move(import), order_.location, task_.job, meeting);
  return {};
}

/// The image whose changes can be saved as a layer: one of a registry, in a container that nobody
/// has changed yet.
Result<std::string> Leader::image_below(const Terms& terms, const ContainerSpec& spec) const {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorKind::refused, "save the changes as a layer: " + why)
        .hint("save the whole container: --container-save=FILE.sqsh");
  };
  if (terms.request.name && !named_.is_new())
    return refuse("the container has changes of earlier steps");
  const auto location = ImageLocation::parse(spec.image);
  if (spec.from != ContainerSpec::From::store || !location ||
      location->kind != ImageLocation::Kind::registry)
    return refuse("the image is not one of a registry");
  return location->name.canonical();
}

/// From the order to the root that is set up.
Result<Led> Leader::build(Terms& terms, TaskHooks& hooks, Ordered& container) {
  auto message = SPC_TRY(line_.await({TaskMessageKind::hooks, TaskMessageKind::set_up}));
  order_ = {};
  if (message.kind == TaskMessageKind::hooks) {
    SPC_TRY(run_shell_hooks(std::move(message), terms, hooks, container));
    message = SPC_TRY(line_.await({TaskMessageKind::set_up}));
  }
  auto edits = set_up(message, terms, hooks, container);
  if (!edits) {
    take_back();
    return std::move(edits).error();
  }
  if (saver_) {
    const auto root = SPC_TRY(line_.await({TaskMessageKind::to_save}));
    if (root.descriptors.size() != 1) return Error(ErrorKind::internal, "no root to save");
    const int record = message.descriptors[1].get();
    SPC_TRY(saver_.give(root.descriptors.front().get(), record, container.spec.settings,
                        container.image_below));
    SPC_TRY(send_struct(line_.socket(), TaskMessage{.kind = TaskMessageKind::to_save}));
  }
  if (!terms.request.explain) return Led::set_up;
  SPC_TRY(explain_instead(terms, hooks, container.spec, *std::move(edits)));
  return Led::explained;
}

Result<void> Leader::run_shell_hooks(AgentMessage message, const Terms& terms,
                                     const TaskHooks& hooks, Ordered& container) {
  if (message.descriptors.size() != 4) return Error(ErrorKind::internal, "no root for hooks");
  SPC_TRY(add_image_record(container.spec, message.descriptors[1].get(), message.manifest));
  const ShellHookStart start{terms.request, task_.job, terms.site, container.spec};
  container.hooks->add(SPC_TRY(run_shell_hooks_in_step(
      hooks.shell_hooks(), start, message.descriptors, container.root, line_.socket(), task_.log)));
  return {};
}

Result<TaskEdits> Leader::set_up(const AgentMessage& message, const Terms& terms, TaskHooks& hooks,
                                 Ordered& container) {
  if (message.descriptors.size() != 2) return Error(ErrorKind::internal, "no root to set up");
  line_.user_source().stop();  // before anything of the image is entered
  importer_.release();         // the image is open
  if (!terms.request.name || named_.plan() == NamePlan::make) say_import(task_, Event::import_ends);
  ContainerSpec& spec = container.spec;
  SPC_TRY(add_image_record(spec, message.descriptors[1].get(), message.manifest));
  if (container.hooks) SPC_TRY(container.hooks->create_on_host(hooks, spec));
  if (terms.request.explain) SPC_TRY(hooks.before_entering(spec));
  RootSetup& root = container.root;
  if (container.hooks && !terms.request.explain)
    root.before_others = [&] { return container.hooks->start(hooks); };
  root.asks_host = hooks.asks_host();
  SPC_TRY(enter_root(message.descriptors[0].get()));
  return set_up_inside(terms, hooks, container, message.manifest);
}

Result<TaskEdits> Leader::set_up_inside(const Terms& terms, TaskHooks& hooks, Ordered& container,
                                        const Digest& manifest) {
  ContainerSpec& spec = container.spec;
  if (spec.settings.in_files) read_image_files(task_.job, spec.settings, &task_.log);
  if (terms.request.workdir.empty())
    container.root.directories.push_back(workdir_of(terms.request, spec.settings));
  SPC_TRY(named_.write(manifest));
  note_.write(named_.notes(), named_.is_new());
  TaskNotes notes{.step = TaskNotes::step_of(task_.job),
                  .image = spec.image,
                  .from = spec.from,
                  .writable = spec.writable,
                  .site = terms.site,
                  .edits = {},
                  .security = std::move(container.security),
                  .wishes = task_.asked.environment};
  if (container.hooks) notes.edits = SPC_TRY(container.hooks->create(hooks, spec, container.root));
  SPC_TRY(notes.write(notes_));
  container.root.not_ours = [this](const std::string& paths) {
    task_.log.write(LogLevel::warning, not_ours(paths));
  };
  SPC_TRY(set_up_root(container.root, line_.socket()));
  return std::move(notes.edits);
}

/// Nothing is kept under a name that did not exist.
Result<void> Leader::explain_instead(Terms& terms, TaskHooks& hooks, ContainerSpec& spec,
                                     TaskEdits edits) {
  SPC_TRY(decide_all(spec, {terms.request, terms.site, hooks, edits}, task_));
  for (const std::string& line : explain(spec, terms.request))
    task_.log.write(LogLevel::info, line);
  take_back();
  return {};
}

void Leader::take_back() {
  named_.take_back();
  if (named_.is_new()) note_.remove();
}

}  // namespace spc
