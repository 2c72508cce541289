#include "launch/leader.hpp"

#include "launch/hooks/shell_hooks.hpp"
#include "launch/inside/image_files.hpp"
#include "task/enter.hpp"
#include "task/visit.hpp"

namespace spc {
namespace {

/// Whether this is the script of a batch job of which only the steps run in containers.
bool stays_outside(const Terms& terms) {
  const LaunchRequest& request = terms.request;
  if (request.batch_script.empty()) return false;
  return (request.batch.empty() ? terms.site.batch : request.batch) == "steps";
}

}  // namespace

Result<std::optional<InContainer>> Leader::lead(AgentMessage policy) {
  Terms terms = SPC_TRY(read_terms(task_, policy, known_));
  if (stays_outside(terms)) {
    SPC_TRY(stay_outside());
    return std::optional<InContainer>();
  }
  auto context = hook_context(terms.request, task_.job, terms.site);
  auto hooks = SPC_TRY(TaskHooks::find(std::move(context), task_.log));
  SPC_TRY(start_processes(terms, hooks));
  if (terms.request.name) SPC_TRY(settle_name(terms));
  auto container = SPC_TRY(order(terms, hooks));

  Built built = SPC_TRY(build(terms, hooks, container));
  auto ready = SPC_TRY(ReadyContainer::of(std::move(built.ready)));
  if (built.to_save) SPC_TRY(saver_.give(built.to_save.get(), ready.record(), container.spec.settings));
  // A container that was running has the notes of its first step.
  const int file = container.root.container_runs ? ready.notes.get() : container.root.notes;
  TaskNotes notes;
  if (file >= 0) notes = SPC_TRY(TaskNotes::read(file));
  if (built.place != Place::container) {
    auto way = SPC_TRY(read_ready(ready, notes, task_, known_, container.spec));
    if (built.place == Place::untouched) {
      hooks = SPC_TRY(TaskHooks::find_for_follower(hooks.context(), notes.edits, task_.log));
      SPC_TRY(hooks.before_entering(container.spec));
    }
    SPC_TRY(go_in(way, task_, container.spec));
    terms.site = std::move(way.site);
  }
  return std::optional(InContainer{.request = std::move(terms.request),
                                   .site = std::move(terms.site),
                                   .spec = std::move(container.spec),
                                   .hooks = std::move(hooks),
                                   .edits = std::move(notes.edits),
                                   .entrypoint = std::move(container.entrypoint),
                                   .notes = std::move(ready.notes),
                                   .ready = ready.message,
                                   .named = std::move(named_),
                                   .recorded_as = std::move(container.recorded_as)});
}

/// From the order to the agent's word that the container is ready. One that runs already, and gets nothing added, is ready at
/// once.
Result<Leader::Built> Leader::build(const Terms& terms, TaskHooks& hooks, Building& container) {
  auto message = SPC_TRY(line_.await({TaskMessageKind::hooks, TaskMessageKind::set_up, TaskMessageKind::ready}));
  if (message.kind == TaskMessageKind::ready) {
    line_.end();
    if (task_.before_entering) task_.before_entering();
    return Built{std::move(message), {}, Place::untouched};
  }
  if (message.kind == TaskMessageKind::hooks) {
    SPC_TRY(run_shell_hooks(std::move(message), terms, hooks, container));
    message = SPC_TRY(line_.await({TaskMessageKind::set_up}));
  }
  Built built;
  built.place = SPC_TRY(set_up(std::move(message), terms, hooks, container));
  built.ready = SPC_TRY(await_ready(built.to_save));
  return built;
}

/// What lives on the host until all tasks have ended. `save` comes second: there can be but one process that slurmstepd
/// waits for.
Result<void> Leader::start_processes(const Terms& terms, const TaskHooks& hooks) {
  const LaunchRequest& request = terms.request;
  if (terms.is_first() && !request.explain && hooks.has_stop()) {
    const auto stop = [&](Log& to_user) { hooks.stop(to_user); };
    stop_process_ = SPC_TRY(StopProcess::start(task_.step, stop));
  }
  if (const auto path = task_.save_path()) {
    const StepChannel& channel = stop_process_.channel_of_save(task_.step);
    const std::string name = request.name ? request.name->text : "";
    saver_ = SPC_TRY_DURING("--container-save", Saver::start(channel, *path, name, *request.style, task_.job));
  }
  importer_.set_program(terms.site.importer);
  return {};
}

Result<void> Leader::settle_name(const Terms& terms) {
  const bool of_job = terms.site.container_scope == "job";
  SPC_TRY(named_.ask(*terms.request.name, of_job, line_.socket()));
  for (;;) {
    auto answer = SPC_TRY(line_.await({TaskMessageKind::named}));
    if (SPC_TRY(named_.take_answer(answer, std::move(answer.descriptors), line_.socket()))) return {};
  }
}

Result<Leader::Building> Leader::order(const Terms& terms, TaskHooks& hooks) {
  Building container;
  container.entrypoint = SPC_TRY(Entrypoint::prepare(terms.request, terms.site));
  auto order = SPC_TRY(plan_container({task_, terms, named_, hooks, importer_}));
  std::uint32_t flags = 0;
  if (terms.request.private_layer) flags |= TaskMessage::start_private;
  if (saver_) flags |= TaskMessage::start_save;
  if (order.hooks && PreparedHooks::runs_shell_hooks(hooks)) flags |= TaskMessage::start_hooks;
  SPC_TRY(send(order, flags, line_.socket()));
  if (order.image.user_source) {
    line_.user_source().prepare(std::move(order.image.user_source), order.location, task_.job);
  }
  container.root = root_setup(order, named_);
  container.spec = std::move(order.spec);
  container.hooks = std::move(order.hooks);
  if (container.hooks) stop_process_.confirm();
  if (terms.is_first()) container.recorded_as = container.spec.user;
  return container;
}

Result<void> Leader::run_shell_hooks(AgentMessage message, const Terms& terms, const TaskHooks& hooks,
                                     Building& container) {
  if (message.descriptors.size() != 3) return Error(ErrorKind::internal, "no namespace for hooks");
  SPC_TRY(add_image_record(container.spec, message.descriptors[1].get()));
  const ShellHookStart start{terms.request, task_.job, terms.site, container.spec};
  container.hooks->add(SPC_TRY(run_shell_hooks_in_step(hooks.shell_hooks(), start, message.descriptors, container.root,
                                                       line_.socket(), task_.log)));
  return {};
}

Result<Leader::Place> Leader::set_up(AgentMessage message, const Terms& terms, TaskHooks& hooks, Building& container) {
  if (message.descriptors.size() != 2) return Error(ErrorKind::internal, "no namespace to set up");
  line_.user_source().stop();  // before anything of the image is entered
  importer_.release();         // the image is open
  if (task_.before_entering) task_.before_entering();
  SPC_TRY(add_image_record(container.spec, message.descriptors[1].get()));
  SPC_TRY(container.hooks ? container.hooks->before_entering(hooks, container.spec)
                          : hooks.before_entering(container.spec));
  RootSetup& root = container.root;
  if (container.hooks && !terms.request.explain) root.before_others = [&] { return container.hooks->start(hooks); };
  auto notes = SPC_TRY(TaskNotes::make_file());
  root.notes = notes.get();
  SPC_TRY(container.entrypoint.write_down_in(std::move(notes)));
  auto namespaces = SPC_TRY(ContainerNamespaces::take(message.descriptors, 0, 2));
  const auto inside = [&] { return set_up_inside(terms, hooks, container, message.manifest); };
  // There is more to enter when the container is ready, and once inside this process has nothing left to enter with.
  const bool visits = root.namespaces != 0;
  if (!visits) SPC_TRY(enter_container(namespaces));
  auto done = visits ? visit_container(namespaces, inside) : inside();
  if (!done) {
    named_.take_back();
    return std::move(done).error();
  }
  return visits ? Place::host : Place::container;
}

Result<void> Leader::set_up_inside(const Terms& terms, TaskHooks& hooks, Building& container, const Digest& manifest) {
  ContainerSpec& spec = container.spec;
  if (spec.settings.in_files) read_image_files(task_.job, spec.settings, &task_.log);
  if (terms.request.workdir.empty()) container.root.directories.push_back(workdir_of(terms.request, spec.settings));
  SPC_TRY(named_.write(manifest));
  TaskNotes notes{TaskNotes::step_of(task_.job), terms.site, {}};
  if (container.hooks) notes.edits = SPC_TRY(container.hooks->create(hooks, spec, container.root));
  SPC_TRY(notes.write(container.root.notes));
  return set_up_root(container.root, line_.socket());
}

Result<AgentMessage> Leader::await_ready(UniqueFd& to_save) {
  for (;;) {
    auto message = SPC_TRY(line_.await({TaskMessageKind::to_save, TaskMessageKind::ready}));
    if (message.kind == TaskMessageKind::ready) {
      line_.end();
      return message;
    }
    if (message.descriptors.size() == 1) to_save = std::move(message.descriptors.front());
  }
}

}  // namespace spc
