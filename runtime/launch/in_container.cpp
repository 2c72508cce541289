#include "launch/in_container.hpp"

#include "launch/inside/image_files.hpp"
#include "launch/site/enroot_compat.hpp"
#include "task/enter.hpp"

namespace spc {

Result<ReadyContainer> ReadyContainer::of(AgentMessage ready) {
  const std::size_t fixed = 2;
  if (ready.descriptors.size() < fixed + ready.has_notes) {
    return Error(ErrorKind::internal, "no namespace to enter");
  }
  ReadyContainer container{ready, std::move(ready.descriptors), {}};
  if (ready.has_notes) container.notes = std::move(container.passed[fixed]);
  return container;
}

Result<WayIn> read_ready(ReadyContainer& ready, const TaskNotes& notes, const TaskContext& task,
                         KnownSite& known, ContainerSpec& spec) {
  const TaskMessage& message = ready.message;
  WayIn way;
  SPC_TRY(add_image_record(spec, ready.record()));
  spec.user = UserIdentity::from_first_task(message.text.view());
  way.namespaces =
      SPC_TRY(ContainerNamespaces::take(ready.passed, message.namespaces, 2U + message.has_notes));
  if (notes.step == TaskNotes::step_of(task.job)) {
    way.site = notes.site;
  } else {
    way.site = known.get();
    SPC_TRY(add_enroot_files(way.site, task.job, nullptr));
  }
  *task.asked.style = message_style(way.site);
  return way;
}

Result<void> go_in(const WayIn& way, const TaskContext& task, ContainerSpec& spec) {
  SPC_TRY(enter_container(way.namespaces));
  // The leader has said what is to be said.
  if (spec.settings.in_files) read_image_files(task.job, spec.settings, nullptr);
  return {};
}

Result<InContainer> follow(AgentMessage message, const TaskContext& task, KnownSite& known) {
  auto ready = SPC_TRY(ReadyContainer::of(std::move(message)));
  if (task.before_entering) task.before_entering();
  TaskNotes notes;
  if (ready.notes) notes = SPC_TRY(TaskNotes::read(ready.notes.get()));
  ContainerSpec spec;
  auto way = SPC_TRY(read_ready(ready, notes, task, known, spec));
  auto entrypoint = SPC_TRY(Entrypoint::prepare(task.asked, way.site));
  auto context = hook_context(task.asked, task.job, way.site);
  auto hooks = SPC_TRY(TaskHooks::find_for_follower(std::move(context), notes.edits, task.log));
  SPC_TRY(hooks.before_entering(spec));
  SPC_TRY(go_in(way, task, spec));
  return InContainer{.request = task.asked,
                     .site = std::move(way.site),
                     .spec = std::move(spec),
                     .hooks = std::move(hooks),
                     .edits = std::move(notes.edits),
                     .entrypoint = std::move(entrypoint),
                     .notes = std::move(ready.notes),
                     .ready = ready.message,
                     .named = {},
                     .recorded_as = {}};
}

}  // namespace spc
