#include "launch/in_container.hpp"

#include "image/reference/file_url.hpp"
#include "launch/inside/image_files.hpp"
#include "launch/inside/start_record.hpp"
#include "launch/site/enroot_compat.hpp"
#include "task/fake_root.hpp"

namespace spc {
namespace {

/// The step's container may be another step's, whose site settings are not ours; the user's files
/// count for each.
Result<SitePolicy> own_site(const Asked& asked) {
  auto site = SitePolicy::read();
  site.override_with(asked.request.overrides);
  SPC_TRY(add_enroot_files(site, asked.job, nullptr));
  return site;
}

/// What the container has is what counts, not what is asked for.
HookContext context_of(Asked& asked, const SitePolicy& site, const TaskMessage& ready,
                       const TaskNotes& notes) {
  asked.request.namespaces = ready.namespaces & ~std::uint32_t{own_user};
  asked.request.remap_root = (ready.namespaces & own_user) != 0;
  asked.request.writable = notes.writable;
  return hook_context(asked.request, asked.job, site);
}

Result<ContainerSpec> read_spec(const AgentMessage& ready, const TaskNotes& notes) {
  ContainerSpec spec;
  SPC_TRY(add_image_record(spec, ready.descriptors[1].get(), ready.manifest));
  spec.image = notes.image;
  spec.from = notes.from;
  spec.writable = notes.writable;
  spec.namespaces = ready.namespaces;
  spec.user = UserIdentity::from_first_task(ready.text.view());
  return spec;
}

}  // namespace

Result<void> answer_for_host(const Arrival& arrival, const TaskCall& call, int answer) {
  const AgentMessage& ready = arrival.ready;
  Asked asked = SPC_TRY(call.read(ReadAt::node));
  auto notes = SPC_TRY(TaskNotes::read(arrival.notes.get()));
  notes.wishes = asked.request.environment;
  if (notes.step != TaskNotes::step_of(asked.job)) notes.site = SPC_TRY(own_site(asked));
  const auto spec = SPC_TRY(read_spec(ready, notes));
  auto context = context_of(asked, notes.site, ready, notes);
  auto hooks = SPC_TRY(TaskHooks::find_for_task(std::move(context), notes.edits, call.log));
  notes.edits = SPC_TRY(hooks.said_on_host(spec));
  return notes.write(answer);
}

Result<InContainer> read_inside(const Arrival& arrival, const TaskCall& call) {
  const AgentMessage& ready = arrival.ready;
  Asked asked = SPC_TRY(call.read(ReadAt::container));
  auto notes = SPC_TRY(TaskNotes::read(arrival.notes.get()));
  TaskNotes of_host;
  if (arrival.answer) of_host = SPC_TRY(TaskNotes::read(arrival.answer.get()));
  // Another step may have started the container.
  TaskNotes& of_step = arrival.answer ? of_host : notes;
  asked.request.environment = std::move(of_step.wishes);
  SitePolicy site = std::move(of_step.site);
  *asked.request.style = message_style(site);
  SPC_TRY(notes.security.check(asked.request));
  asked.request.entrypoint_log = asked.request.entrypoint_log || site.entrypoint_log;
  auto spec = SPC_TRY(read_spec(ready, notes));
  // The leader has said what is to be said.
  if (spec.settings.in_files) read_image_files(asked.job, spec.settings, nullptr);
  auto context = context_of(asked, site, ready, notes);
  auto hooks = TaskHooks::inside(std::move(context), notes.edits, of_host.edits, call.log);
  auto user = spec.user;
  return InContainer{.asked = std::move(asked),
                     .site = std::move(site),
                     .spec = std::move(spec),
                     .hooks = std::move(hooks),
                     .edits = std::move(notes.edits),
                     .security = std::move(notes.security),
                     .as_on_host = std::move(user)};
}

Result<void> decide_all(ContainerSpec& spec, const Decision& by, const TaskContext& task) {
  if ((spec.namespaces & own_user) != 0) {
    spec.user = spec.user.as_root();
    SPC_TRY(fake_root_calls());
  }
  decide(spec, by.request, by.site, task.job);
  tell_image(without_secrets(task.asked.image), spec);
  tell_name(task.asked.name, spec);
  tell_prompt(spec);
  SPC_TRY(by.hooks.apply(by.edits, spec, task.log));
  return enter_workdir(spec, by.request);
}

}  // namespace spc
