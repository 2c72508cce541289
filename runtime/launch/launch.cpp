#include "launch/launch.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/clock.hpp"
#include "base/file.hpp"
#include "base/socket.hpp"
#include "image/reference/location.hpp"
#include "image/reference/request.hpp"
#include "launch/after/saver.hpp"
#include "launch/after/stop_process.hpp"
#include "launch/hooks/shell_hooks.hpp"
#include "launch/hooks/step_edits.hpp"
#include "launch/host/host_side.hpp"
#include "launch/host/image_order.hpp"
#include "launch/host/local_image.hpp"
#include "launch/host/named_container.hpp"
#include "launch/host/user_source.hpp"
#include "launch/inside/entrypoint.hpp"
#include "launch/inside/image_files.hpp"
#include "launch/inside/start_record.hpp"
#include "launch/inside/task_notes.hpp"
#include "launch/policy/site.hpp"
#include "launch/request/save_path.hpp"
#include "launch/site/enroot_compat.hpp"
#include "launch/site/policy_rules.hpp"
#include "launch/site/site_importer.hpp"
#include "launch/site/site_request.hpp"
#include "launch/spec/container_spec.hpp"
#include "task/enter.hpp"
#include "task/fake_root.hpp"
#include "task/visit.hpp"

namespace spc {
namespace {

/// As far as this process can know; plugstack.conf wins.
Site site_now(const LaunchRequest& request) {
  Site site = Site::read();
  site.override_with(request.overrides);
  return site;
}

Error agent_has_ended() {
  return Error(ErrorKind::unavailable, "set up the container: the agent exited")
      .hint("try again; see slurmd's log on the node");
}

/// This task's private line to the agent.
Result<UniqueFd> join_step(int common) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const UniqueFd mount_namespace(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  if (!mount_namespace) return Error::from_errno(errno, "open the task's mount namespace");
  TaskMessage message;
  message.kind = TaskMessageKind::join;
  const int passed[] = {theirs.get(), mount_namespace.get()};
  if (!send_struct(common, message, passed)) return agent_has_ended();
  return std::move(ours);
}

/// NamespaceBits that the container shall have. Root is root anyway.
std::uint32_t namespaces_of(const LaunchRequest& request) {
  return request.namespaces | (request.remap_root.value_or(false) && ::geteuid() != 0 ? own_user : 0U);
}

/// What can be written in each place; 0: what the site allows. Without anything of the user's inside, what he writes has
/// nowhere else to go, so it is measured by his job and not by the machine.
Result<std::uint64_t> upper_size(const LaunchRequest& request, const PolicyRecord& policy,
                                 const std::map<std::string, std::string>& job_environment) {
  if (request.tmpfs_size) return SPC_TRY_DURING("--container-tmpfs-size", tmpfs_bytes(*request.tmpfs_size, job_environment));
  if (!request.contain || policy.upper_bytes != 0) return std::uint64_t{0};
  return bytes_of({.percent = policy.upper_percent}, memory_of_job(job_environment), "");
}

/// The lines about an import that pyxis writes; ours say how far it is instead.
void say_import(const LaunchRequest& request, Event event, const std::map<std::string, std::string>& job_environment, Log& log) {
  const auto location = ImageLocation::parse(request.image);
  if (*request.style == MessageStyle::own || !location || location->kind == ImageLocation::Kind::path) return;
  const auto tasks = job_environment.find("SLURM_STEP_NUM_TASKS");
  const bool alone = !request.batch_script.empty() || (tasks != job_environment.end() && tasks->second == "1");
  if (event == Event::import_begins && !alone) return;
  log.write(LogLevel::notice, in_words_of_pyxis(event, request.image));
}

/// The leading task's first part, on the host: tells the agent what to build and finds out who the user is. Gives back how
/// to furnish the container; `user_source` will answer what `import` asks.
Result<Furniture> order_container(LaunchRequest request, const std::map<std::string, std::string>& job_environment,
                                  const PolicyRecord& policy, const Site& site, const Digest& earlier, int agent,
                                  const Saver& saver, NamedStart& named, HookedStart& hooked, ContainerSpec& spec,
                                  UserSource& user_source, SiteImporter& site_importer, Log& log) {
  ImageLocation image;
  if (!request.image.empty()) image = SPC_TRY(ImageLocation::parse(request.image, policy.default_registry));
  if (request.name) SPC_TRY(named.decide(wanted_image(request, image, policy)));
  if (named.plan() == NamePlan::make) say_import(request, Event::import_begins, job_environment, log);
  auto order = SPC_TRY(order_image(request, policy, site, image, earlier, named, site_importer, log));
  const bool joins = (order.flags & TaskMessage::start_join) != 0;
  if (joins)
    std::erase_if(request.mounts, [](const MountSpec& mount) { return mount.origin != MountSpec().origin; });  // has them
  const bool mount_home =
      !request.contain && request.mount_home.value_or(site.flag("mount_home", policy.mount_home != 0) && !joins);
  const bool needs_home = mount_home || (request.contain && !joins);
  if (needs_home) spec.user = UserIdentity::of_this_process();
  const auto run_hooks = [&](HostSide& so_far) {
    return joins ? Result<void>() : hooked.prepare(HookedStart::context_of(request, job_environment, site), so_far, log);
  };
  auto side = SPC_TRY(gather(request, needs_home ? spec.user.home : "", job_environment, log,
                             joins ? ContainerState::runs : ContainerState::is_new, run_hooks));
  if (!request.contain) add_display(side, job_environment);
  spec.image = request.image.empty() ? named.notes().image : image.canonical();
  spec.from = order.from;
  spec.by_fuse = policy.squashfs == PolicyRecord::by_fuse;
  spec.mounts = side.mounts();
  spec.writable = request.writable.value_or(true);

  TaskMessage message;
  message.kind = TaskMessageKind::source;
  for (const OpenedSource& source : side.sources) {
    message.source_flags = source.flags;
    message.size = source.size;
    const int passed[] = {source.path.get()};
    SPC_TRY(send_struct(agent, message, std::span(passed, source.path ? 1 : 0)));
  }

  message = TaskMessage{};
  message.kind = TaskMessageKind::start;
  message.start_flags = order.flags;
  if (!spec.writable) message.start_flags |= TaskMessage::start_read_only;
  if (request.private_layer) message.start_flags |= TaskMessage::start_private;
  if (saver) message.start_flags |= TaskMessage::start_save;
  if (hooked.runs_shell_hooks()) message.start_flags |= TaskMessage::start_hooks;
  message.manifest = order.manifest;
  message.offset = order.offset;
  spec.namespaces = message.namespaces = namespaces_of(request);
  message.upper_size = SPC_TRY(upper_size(request, policy, job_environment));
  const std::uint32_t namespaces = message.namespaces;
  const int passed[] = {order.first.get(), order.second.get()};
  SPC_TRY(send_struct(agent, message, std::span(passed, order.first ? 2 : 0)));
  if (order.user_source) user_source.prepare(std::move(order.user_source), image, job_environment);

  // Asked while the builder works. Not later: inside, the answer would come from the image's name service.
  if (!needs_home) spec.user = UserIdentity::of_this_process();
  const UserIdentity& user = spec.user;
  Furniture furniture = std::move(side.furniture);
  furniture.for_other_tasks = user.for_other_tasks();
  furniture.container_runs = joins;
  furniture.namespaces = named.namespaces();
  if (joins) return furniture;
  furniture.passwd_entry = user.passwd_entry();
  furniture.group_entries = user.group_entries;
  furniture.namespaces = namespaces;
  const std::string home = (namespaces & own_user) != 0 ? user.as_root().home : user.home;
  if (needs_home) move_placement(furniture, user.home, home);
  if (!mount_home && home != "/") furniture.directories.push_back(home);  // programs expect that HOME exists
  return furniture;
}

/// The other tasks wait for the agent's word, so it must hear what went wrong; it then tells every task, this one too.
Result<void> report_failure(int agent, const Error& error) {
  TaskMessage message;
  message.kind = TaskMessageKind::failed;
  message.failure = WireError(error);
  return send_struct(agent, message);
}

/// What a task says that can still see the user's files. The text may have a hint of its own, which then comes first.
Error with_advice(const Error& error, const std::string& image) {
  const auto location = ImageLocation::parse(image);
  const bool at_registry = location && location->kind == ImageLocation::Kind::registry;
  const std::string advice = at_registry ? did_you_mean_file(image) : "";
  return advice.empty() ? error : Error(error.kind(), error.message()).hint(advice);
}

/// Whether this is the script of a batch job of which only the steps run in containers.
bool stays_outside(const LaunchRequest& request, const Site& site) {
  if (request.batch_script.empty()) return false;
  return (request.batch.empty() ? site.text("batch") : request.batch) == "steps";
}

}  // namespace

Result<TaskEntry> launch(const LaunchRequest& asked, const std::map<std::string, std::string>& job_environment,
                         const StepChannel& step, Log& log, const std::function<void()>& before_entering) {
  const std::uint64_t begin = now_us();
  const UniqueFd agent = SPC_TRY(join_step(step.tasks.get()));
  ContainerSpec spec;
  const auto save_path = asked.save.empty() || asked.explain ? std::nullopt : save_path_here(asked.save, job_environment);
  Saver saver;
  UniqueFd to_save;  // what it will save
  Furniture furniture;
  UserSource user_source;
  SiteImporter site_importer(job_environment);
  Site site;                      // the lead is given it; the others read it later, when it is the same
  LaunchRequest request = asked;  // the lead completes it
  std::optional<Entrypoint> entrypoint;
  HookedStart hooked;
  StopProcess stop_process;
  int own_notes = -1;   ///< of the lead: the entrypoint has them
  TaskMessage leading;  // what the agent told the lead
  NamedStart named;
  bool inside = false;
  std::optional<UserIdentity> leader;  // as the host knows him

  // Read once: many tasks wait on a node, and each hears of every progress. The notes of the lead have it, too.
  std::optional<Site> known_site;
  const auto site_as_known = [&]() -> const Site& {
    if (!known_site) known_site = site_now(asked);
    return *known_site;
  };
  const auto hear_site = [&](int policy_file, const PolicyRecord& policy) -> Result<void> {
    site = SPC_TRY(Site::of(policy_file));
    known_site = site;
    known_site->override_with(asked.overrides);
    SPC_TRY(add_enroot_files(site, job_environment, &log));
    site.override_with(asked.overrides);
    *request.style = message_style(site);
    request = SPC_TRY(fit_to_site(asked, policy, site));
    // Explaining takes no container away.
    if (request.explain && request.name && request.name->use == ContainerName::Use::replace) request.name.reset();
    return {};
  };

  const auto hooks_before_entering = [&](const TaskEdits& edits) {
    return hooked.before_entering(HookedStart::context_of(request, job_environment, site), edits, spec, log);
  };
  // Once a node. Before a `save` is started, as there can be but one process that slurmstepd waits for.
  const auto start_stop_process = [&]() -> Result<void> {
    SPC_TRY(hooked.find(HookedStart::context_of(request, job_environment, site), log));
    if (!request.explain && hooked.has_stop())
      stop_process = SPC_TRY(StopProcess::start(step, [&](Log& to_user) { hooked.stop(to_user); }));
    return {};
  };
  bool left_host = false;
  const auto leave_host = [&] {
    if (!left_host && before_entering) before_entering();
    left_host = true;
  };

  for (;;) {
    TaskMessage message;
    SPC_TRY(user_source.wait_for(agent.get()));
    auto descriptors = receive_struct(agent.get(), message);
    if (!descriptors) return agent_has_ended();
    if (!inside && message.kind != TaskMessageKind::lead && message.kind != TaskMessageKind::ready) {
      *request.style = message_style(site_as_known());
    }

    switch (message.kind) {
      case TaskMessageKind::progress:
        if (*request.style == MessageStyle::pyxis) break;  // a step of pyxis says two lines, and scripts count on it
        [[fallthrough]];
      case TaskMessageKind::warning:
        log.write(message.kind == TaskMessageKind::warning ? LogLevel::warning : LogLevel::info, message.text.view());
        break;

      case TaskMessageKind::lead:
        if (descriptors->size() != 1) return Error(ErrorKind::internal, "no policy for the leader");
        if (auto heard = hear_site(descriptors->front().get(), message.policy); !heard) {
          SPC_TRY(report_failure(agent.get(), heard.error()));
          break;
        }
        if (stays_outside(request, site)) {
          SPC_TRY(stay_outside());
          return TaskEntry{};
        }
        if (auto started = message.manifest == Digest() ? start_stop_process() : Result<void>(); !started) {
          SPC_TRY(report_failure(agent.get(), started.error()));
          break;
        }
        if (save_path) {
          auto started = Saver::start(stop_process.channel_of_save(step), *save_path, request.name ? request.name->text : "",
                                      *request.style, job_environment);
          if (!started) {
            SPC_TRY(report_failure(agent.get(), std::move(started).error().during("--container-save")));
            break;
          }
          saver = *std::move(started);
        }
        site_importer.set_program(site.text("importer"));
        leading = message;
        if (request.name) {
          SPC_TRY(named.ask(*request.name, site.text("container_scope") == "job", agent.get()));
          break;
        }
        [[fallthrough]];
      case TaskMessageKind::named: {
        if (request.name) {
          auto answered = named.take_answer(message, *std::move(descriptors), agent.get());
          if (!answered) SPC_TRY(report_failure(agent.get(), answered.error()));
          if (!answered || !*answered) break;
        }
        auto prepared = Entrypoint::prepare(request, site);
        auto ordered = !prepared ? Result<Furniture>(prepared.error())
                                 : order_container(request, job_environment, leading.policy, site, leading.manifest, agent.get(),
                                                   saver, named, hooked, spec, user_source, site_importer, log);
        if (!ordered) {
          SPC_TRY(report_failure(agent.get(), ordered.error()));
          break;
        }
        furniture = *std::move(ordered);
        if (hooked.prepared()) stop_process.confirm();
        entrypoint = *std::move(prepared);
        if (leading.manifest == Digest()) leader = spec.user;  // else a container of one task, after the first
        break;
      }

      case TaskMessageKind::hooks: {
        if (descriptors->size() != 3) return Error(ErrorKind::internal, "no namespace for hooks");
        SPC_TRY(add_image_record(spec, (*descriptors)[1].get()));
        const ShellHookStart start{request, job_environment, site, spec};
        auto ran = run_shell_hooks_in_step(hooked.shell_hooks(), start, *descriptors, furniture, agent.get(), log);
        if (!ran && !report_failure(agent.get(), ran.error())) return agent_has_ended();
        if (ran) hooked.add(*std::move(ran));
        break;
      }

      case TaskMessageKind::set_up: {
        if (descriptors->size() != 2) return Error(ErrorKind::internal, "no namespace to set up");
        user_source.stop();       // before anything of the image is entered
        site_importer.release();  // the image is open
        leave_host();
        SPC_TRY(add_image_record(spec, (*descriptors)[1].get()));
        if (auto said = hooks_before_entering({}); !said) {
          SPC_TRY(report_failure(agent.get(), said.error()));
          break;
        }
        furniture.before_others = [&] { return request.explain ? Result<void>() : hooked.start(); };
        auto notes = SPC_TRY(TaskNotes::make_file());
        furniture.notes = notes.get();
        if (!furniture.container_runs) own_notes = notes.get();  // else those count that its first step has written
        SPC_TRY(entrypoint->write_down_in(std::move(notes)));
        auto namespaces = SPC_TRY(ContainerNamespaces::take(*descriptors, 0, 2));
        const auto furnish_inside = [&] {
          if (spec.settings.in_files) read_image_files(job_environment, spec.settings, &log);
          if (request.workdir.empty()) furniture.directories.push_back(workdir_of(request, spec.settings));
          auto furnished = named.write(message.manifest);
          if (furnished) furnished = hooked.create(spec, furniture);
          if (furnished)
            furnished = TaskNotes{TaskNotes::step_of(job_environment), site, hooked.for_tasks()}.write(furniture.notes);
          if (furnished) furnished = furnish(furniture, agent.get());
          if (furnished) return furnished;
          named.take_back();
          return report_failure(agent.get(), furnished.error());
        };
        // There is more to enter when the container is ready, and once inside this process has nothing left to enter with.
        if (furniture.namespaces != 0) {
          if (auto visited = visit_container(namespaces, furnish_inside); !visited) {
            SPC_TRY(report_failure(agent.get(), visited.error()));
          }
          break;
        }
        SPC_TRY(enter_container(namespaces));
        inside = true;
        SPC_TRY(furnish_inside());
        break;
      }

      case TaskMessageKind::to_save: {
        if (descriptors->size() == 1) to_save = std::move(descriptors->front());
        break;
      }

      case TaskMessageKind::ready: {
        if (descriptors->size() < 2U + message.has_notes) return Error(ErrorKind::internal, "no namespace to enter");
        leave_host();
        if (to_save) SPC_TRY(saver.give(to_save.get(), (*descriptors)[1].get(), spec.settings));
        const UniqueFd notes_file = message.has_notes ? std::move(descriptors->at(2)) : UniqueFd();
        TaskNotes notes;
        if (own_notes >= 0 || notes_file) {
          notes = SPC_TRY(TaskNotes::read(own_notes >= 0 ? own_notes : notes_file.get()));
        }
        if (!inside) {
          SPC_TRY(add_image_record(spec, (*descriptors)[1].get()));
          spec.user = UserIdentity::from_first_task(message.text.view());
          const auto namespaces = SPC_TRY(ContainerNamespaces::take(*descriptors, message.namespaces, 2U + message.has_notes));
          if (notes.step == TaskNotes::step_of(job_environment)) {
            site = notes.site;
          } else {
            site = site_as_known();
            SPC_TRY(add_enroot_files(site, job_environment, nullptr));
          }
          *request.style = message_style(site);
          if (!entrypoint) entrypoint = SPC_TRY(Entrypoint::prepare(request, site));
          if (furniture.notes < 0) SPC_TRY(hooks_before_entering(notes.edits));
          SPC_TRY(enter_container(namespaces));
          // The first task has said what is to be said.
          if (spec.settings.in_files) read_image_files(job_environment, spec.settings, nullptr);
        }
        if ((message.namespaces & own_user) != 0) {
          spec.user = spec.user.as_root();
          SPC_TRY(fake_root_calls());
        }
        if (!request.name || named.plan() == NamePlan::make) say_import(request, Event::import_ends, job_environment, log);
        decide(spec, request, site, job_environment);
        tell_image(asked.image, spec);
        SPC_TRY(hooked.apply_to_task(notes.edits, spec, log));
        SPC_TRY(enter_workdir(spec, request));
        TaskEntry entry;
        entry.explained = request.explain;
        if (request.explain) {
          for (const std::string& line : explain(spec, request)) log.write(LogLevel::info, line);
          named.take_back();  // nothing is kept under a name that did not exist
        }
        const std::uint64_t before_entrypoint = now_us();
        SPC_TRY(entrypoint->run(request, notes_file, spec, log));
        entry.environment = change_to(spec.environment, job_environment);
        const std::uint64_t end = now_us();
        entry.timing = timing_line(message, end - begin, spec.entrypoint.empty() ? 0 : end - before_entrypoint);
        if (const auto of_hooks = hooked.timing(notes.edits); !of_hooks.empty()) entry.timing += "; " + of_hooks;
        if (leader && !request.explain)
          log.write(LogLevel::record, start_record(spec.image, *leader, spec, message, end - begin, job_environment));
        if (save_path) tell_saver_of_task(step);
        return entry;
      }

      case TaskMessageKind::failed:
        if (message.failure.error().what().starts_with("pull image ")) {
          say_import(request, Event::import_fails, job_environment, log);
        }
        return with_advice(message.failure.error(), request.image);

      default: return Error(ErrorKind::internal, "unexpected message from the agent");
    }
  }
}

}  // namespace spc
