#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/file.hpp"
#include "base/process/child.hpp"
#include "base/process/kernel.hpp"
#include "base/socket.hpp"
#include "hooks/gpu/gpu_hooks.hpp"
#include "launch/sources/host_side.hpp"
#include "launch/task/image_files.hpp"
#include "reference/location.hpp"
#include "request/options.hpp"

#include "base/format.hpp"
#include "tool/command.hpp"
#include "tool/containers/detached.hpp"
#include "tool/containers/job_step.hpp"
#include "tool/containers/running.hpp"
#include "tool/containers/user_container.hpp"
#include "tool/images/obtain.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {
namespace {

using Commands = std::vector<std::vector<std::string>>;

Error contradiction(const std::string& a, const std::string& b) {
  return {ErrorKind::invalid, formatted("{} and {} cannot be combined", a, b)};
}

/// The options of a job that apply without Slurm, and those of `run` only.
struct RunOptions {
  LaunchRequest request;
  std::string image;
  std::string changes;    ///< directory that keeps changes
  bool in_image = false;  ///< --writable of a directory changes it
  std::string name;
  RootMap map = RootMap::self;
  Detached* detached = nullptr;  ///< set if the container runs in the background
  std::string prompt;            ///< names the container in a shell's prompt; empty: no shell
};

std::map<std::string, std::string> own_environment() { return as_map(environ); }

/// Returns the name of a job option in `scontainer run`, with dashes.
std::string run_name(const ContainerOption& option) { return "--" + name_of_run(option); }

/// Warns of a value that looks like another variable: Apptainer's --env takes a list.
void warn_of_list(const std::string& name, const std::string& value) {
  for (std::size_t comma = value.find(','); comma != std::string::npos;
       comma = value.find(',', comma + 1)) {
    const std::size_t equals = value.find('=', comma);
    if (equals == std::string::npos) return;
    const std::string_view next = std::string_view(value).substr(comma + 1, equals - comma - 1);
    const bool is_name = !next.empty() && next.find_first_not_of(
                                              "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == next.npos;
    if (!is_name) continue;
    report_error(formatted("warning: --env: {} is {} (hint: for two: --env={}={} --env={})",
                           printable(name), in_quotes(value), printable(name),
                           printable(value.substr(0, comma)), printable(value.substr(comma + 1))));
    return;
  }
}

Result<RunOptions> parse_options(const Arguments& arguments) {
  RunOptions options;
  OptionTexts texts;
  std::map<std::string, std::string> variables;
  for (const ContainerOption& option : container_options()) {
    const std::string name = name_of_run(option);
    if (option.run_help == nullptr || !arguments.has(name)) continue;
    if (option.kind == ContainerOption::Kind::on && option.opposite != nullptr) {
      const std::string opposite = run_name(*find_option(option.opposite));
      if (arguments.has(opposite.substr(2))) return contradiction(run_name(option), opposite);
    }
    if (option.is_switch()) SPC_TRY(texts.add(option, arguments.value(name)));
    if (option.kind == ContainerOption::Kind::once && !arguments.value(name).empty()) {
      SPC_TRY(texts.add(option, arguments.value(name)));
    }
    if (option.kind != ContainerOption::Kind::list) continue;
    for (const std::string& text : arguments.values(name)) {
      // Unlike a job's option, --env takes a single NAME=VALUE literally, commas included.
      const auto equals = name == "env" ? text.find('=') : std::string::npos;
      const bool is_addition = text[0] == '+' || text.find("+=") == equals - 1;
      if (equals != std::string::npos && equals > 0 && !is_addition) {
        variables[text.substr(0, equals)] = text.substr(equals + 1);
      } else {
        SPC_TRY(texts.add(option, text));
      }
    }
  }
  options.request.paths = own_paths();
  SPC_TRY(texts.apply_to(options.request, ReadAt::node, run_name));
  options.request.annotations = arguments.annotations;
  options.request.given = texts.given(run_name);
  for (auto& [name, value] : variables) {
    options.request.environment.values[name] = value;
    options.request.given.emplace_back("--env=" + printable(name), "option");
    if (!arguments.has("quiet")) warn_of_list(name, value);
  }
  for (auto& [text, source] : options.request.given) {
    const auto line = arguments.origins.find(text);
    if (line != arguments.origins.end()) source = line->second;
  }
  if (const std::string missing = options.request.environment.missing_in(own_environment());
      !missing.empty())
    report_error("warning: --env: " + missing);
  if (options.request.mount_cwd.value_or(false)) {
    if (!check_home(options.request.paths.here, true))
      return Error(ErrorKind::invalid, formatted("--mount-cwd: {} would cover the image's",
                                                 in_quotes(options.request.paths.here)))
          .hint("start in another directory");
    options.request.mount_work_directory();
  }
  options.map = arguments.has("remap-root") ? RootMap::root : RootMap::self;
  options.image = without_secrets(arguments.words[0]);
  options.request.image = options.image;
  options.name = arguments.value("name");
  options.request.command = arguments.rest;  // hooks may read it
  if (arguments.has("changes"))
    options.changes = SPC_TRY(absolute_path(arguments.value("changes")));
  options.in_image = arguments.has("writable") && options.changes.empty();
  return options;
}

/// Returns the options as those of a step. Variables with values are left out: scontainer sets them
/// for the command itself.
std::vector<std::string> options_of_step(const Arguments& arguments, const LaunchRequest& request) {
  std::vector<std::string> options{"container-image=" + arguments.words[0]};
  for (const ContainerOption& option : container_options()) {
    const std::string name = name_of_run(option);
    if (option.run_help == nullptr || !arguments.has(name) || name == "env") continue;
    if (name == "gpu" && !request.gpu) continue;
    if (option.is_switch() && arguments.value(name).empty()) options.emplace_back(option.name);
    for (const std::string& text : arguments.values(name))
      options.push_back(std::string(option.name) + "=" + text);
  }
  for (const std::string& name : request.environment.keep)
    options.push_back("container-env=" + name);
  return options;
}

/// Returns the image's entrypoint with the given command, or with the image's command.
Result<Commands> command_of(const Arguments& arguments, const std::string& settings) {
  std::vector<std::string> command = setting_values(settings, "entrypoint");
  for (auto& word : arguments.rest.empty() ? setting_values(settings, "cmd") : arguments.rest)
    command.push_back(word);
  if (command.empty())
    return Error(ErrorKind::invalid, "image has no default command")
        .hint("append one: scontainer run IMAGE COMMAND");
  return Commands{command};
}

Commands shells() {
  Commands list;
  const char* own = std::getenv("SHELL");
  if (own != nullptr && own[0] == '/') list.push_back({own});
  for (const char* shell : {"bash", "sh", "ash", "busybox"}) list.push_back({shell});
  list.back().push_back("sh");
  return list;
}

Result<int> supervise_noted(const Places& places, const RunOptions& options,
                            const std::string& image, const std::function<int()>& child) {
  std::optional<RunningEntry> entry;
  return supervise(child, [&](pid_t pid) {
    const RunningContainer container{
        .name = options.name.empty() ? std::to_string(pid) : options.name,
        .image = image,
        .pid = pid,
        .supervisor = ::getpid()};
    if (auto added = RunningEntry::add(places.running, container)) entry.emplace(*std::move(added));
    if (options.detached != nullptr) options.detached->let_go();
  });
}

/// In the child: enters the container and executes the command.
int become_or_say(Result<void> entered, const RunOptions& options, const Commands& commands,
                  std::map<std::string, std::string>& environment) {
  if (!entered) {
    report_error(entered.error().message());
    return kNoContainer;
  }
  if (options.request.explain) return 0;
  for (const auto& [name, value] : options.request.environment.values) environment[name] = value;
  if (commands.front().empty()) {
    report_error("image has no default command (hint: append one: scontainer run IMAGE COMMAND)");
    return kNoContainer;
  }
  if (!options.prompt.empty()) {  // Debian's bash puts debian_chroot before its own prompt
    environment.try_emplace("PS1", options.prompt + ":\\w\\$ ");
    environment.try_emplace("debian_chroot", options.prompt);
  }
  if (options.detached != nullptr) {
    const auto path = environment.find("PATH");
    const std::string missing = why_missing(
        commands.front()[0], path == environment.end() ? "" : path->second, options.image);
    if (commands.size() == 1 && !missing.empty()) {
      report_error(missing);
      return kNoCommand;
    }
    options.detached->take_output();
  }
  return execute(commands, environment, options.image);
}

int become(Result<void> entered, const RunOptions& options, const Commands& commands,
           std::map<std::string, std::string>& environment) {
  const int status = become_or_say(std::move(entered), options, commands, environment);
  if (options.detached != nullptr) options.detached->failed();
  return status;
}

/// Adds the data files of the mounts. Missing optional ones are skipped here and when the root is
/// set up.
Result<void> add_data_files(MountedImage& image, const std::vector<MountSpec>& mounts) {
  for (const MountSpec& mount : mounts) {
    if (mount.kind != MountSpec::Kind::squashfs) continue;
    auto file = open_data_file(mount.source);
    if (!file && mount.optional) continue;
    if (!file) return std::move(file).error();
    SPC_TRY(add_data(image, *std::move(file)));
  }
  return {};
}

/// Starts servers with standard error closed. Those of a shared or background container outlive the
/// process that reads standard error, which would otherwise wait for their end.
template <typename Start>
auto without_stderr(const Start& start) {
  const UniqueFd ours(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  ::dup2(STDIN_FILENO, STDERR_FILENO);  // standard input is /dev/null
  auto started = start();
  ::dup2(ours.get(), STDERR_FILENO);
  return started;
}

/// Set-up and command of an unprivileged container.
struct UserRun {
  const Arguments& arguments;
  RunOptions& options;
  const Places& places;
  Config config;
  Commands commands;
  bool by_image = false;  ///< the image selects the command
  bool shared = false;
  TaskSecurity security;
  ContainerSpec explained;  ///< for --explain: what begin_task() does not know

  UserRun(const Arguments& given, RunOptions& parsed, const Places& where, const Commands* fixed)
      : arguments(given),
        options(parsed),
        places(where),
        commands(fixed != nullptr ? *fixed : Commands{given.rest}),
        by_image(fixed == nullptr && (given.rest.empty() || given.has("entrypoint"))) {}

  /// In the process itself: mounts the image in a user namespace that the process has entered.
  Result<MountedImage> mount(std::string& name, std::string& settings) {
    const auto wanted = SPC_TRY(parse_wanted(arguments, arguments.words[0]));
    auto image = SPC_TRY(open_image(places, config, wanted));
    name = image.name;
    settings = image.settings;
    SPC_TRY_DURING("--add-layer", add_layers(image.files));
    if (by_image && settings != kSettingsInFiles) (void)SPC_TRY(command_of(arguments, settings));
    const WritableLayer writable{.wanted = true,
                                 .size = config.upper_size,
                                 .directory = options.changes,
                                 .keep = *options.request.writable,
                                 .in_image = options.in_image};
    explained.from =
        image.files.layers.empty() ? ContainerSpec::From::directory : ContainerSpec::From::store;
    explained.layers = static_cast<std::uint32_t>(image.files.layers.size());
    const bool outlives = shared || options.detached != nullptr;
    const auto start_servers = [&] { return image.files.start_servers(options.map); };
    SPC_TRY_DURING("set up the container",
                   outlives ? without_stderr(start_servers) : start_servers());
    SPC_TRY_DURING("set up the container", enter_user_namespace(options.map));
    auto mount_all = [&]() -> Result<MountedImage> {
      auto mounted =
          SPC_TRY_DURING("set up the container",
                         mount_image(std::move(image.files), places.workspace(), writable));
      SPC_TRY_DURING("--mounts", add_data_files(mounted, options.request.mounts));
      return mounted;
    };
    auto mounted = SPC_TRY(outlives ? without_stderr(mount_all) : mount_all());
    if (!mounted.writable && *options.request.writable) {
      report_error(
          "warning: the container is read-only: an unprivileged writable container needs Linux "
          "6.12");
    }
    return mounted;
  }

  /// Adds the files of --add-layer. Apptainer's overlays have their files in a directory `upper`.
  Result<void> add_layers(ImageFiles& files) {
    for (const std::string& path : arguments.values("add-layer")) {
      const std::string absolute = SPC_TRY(absolute_path(path));
      auto more =
          SPC_TRY(open_image(places, config, {.image = absolute, .platform = {}, .pull = {}}));
      if (more.files.directory) files.changes.push_back(std::move(more.files.directory));
      for (SquashfsFile& layer : more.files.layers) {
        layer.is_addition = true;
        files.layers.push_back(std::move(layer));
      }
    }
    return {};
  }

  /// In the child, after it has entered the container.
  Result<void> begin(const ImageSettings& settings, const std::string& record,
                     const HookEdits& edits, StepHooks& hooks, UserIdentity user,
                     std::map<std::string, std::string>& environment, Log& log) {
    SPC_TRY(begin_task(options.request, settings, edits, hooks, options.map, std::move(user),
                       environment, explained, log));
    if (by_image && record != kSettingsInFiles) commands = SPC_TRY(command_of(arguments, record));
    // The default command of an image without a record is a script in it.
    if (by_image && record == kSettingsInFiles && !settings.start_script.empty()) {
      commands.front().insert(commands.front().begin(), {"/bin/sh", settings.start_script});
    }
    // With several alternatives, the first that exists is executed, which a shell would hide.
    if (commands.size() == 1 && !commands.front().empty()) {
      auto kept = options.request.environment.values;
      for (const auto& [name, value] : environment) {
        const VariableClass* const own = class_of(name);
        if (own != nullptr && own->image != ImageValue::always) kept.emplace(name, value);
      }
      commands.front() = settings.after_scripts(std::move(commands.front()), kept);
    }
    return security.apply();
  }
};

Result<int> run_alone(UserRun& run) {
  std::string name;
  std::string record;
  auto mounted = SPC_TRY(run.mount(name, record));
  return supervise_noted(run.places, run.options, name, [&] {
    OfEnroot of_enroot{.environment = own_environment()};
    of_enroot.hooks = of_enroot.environment.erase(kStartedByEnroot) != 0;
    auto environment = of_enroot.environment;
    if (of_enroot.hooks) {
      std::erase_if(environment, [](const auto& variable) {
        constexpr std::array<std::string_view, 4> kShown{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME",
                                                         "TERM"};
        return std::find(kShown.begin(), kShown.end(), variable.first) == kShown.end();
      });
    }
    const auto enter = [&]() -> Result<void> {
      StderrLog log;
      const SitePolicy site = site_for(of_enroot);
      auto user = identity_inside(run.options.map);
      auto made =
          SPC_TRY(make_user_container(mounted, run.options.request, ImageSettings::parse(record),
                                      run.options.map, of_enroot, environment, site, log));
      run.explained.mounts = std::move(made.shown);
      run.explained.writable = mounted.writable && *run.options.request.writable;
      return run.begin(made.settings, record, made.edits, made.hooks, std::move(user), environment,
                       log);
    };
    auto entered = enter();
    return become(std::move(entered), run.options, run.commands, environment);
  });
}

/// In the keeper of a shared container: creates it. A child sets it up and returns the namespaces'
/// descriptors.
Result<SharedContainer> make_to_share(UserRun& run) {
  SharedContainer shared;
  auto mounted = std::make_shared<MountedImage>(SPC_TRY(run.mount(shared.image, shared.settings)));
  shared.user = UniqueFd(::open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC));
  if (!shared.user) return Error::from_errno(errno, "open the user namespace");
  auto line = SPC_TRY(socket_pair());
  const auto make = [&] {
    StderrLog log;
    auto made = make_user_container(
        *mounted, run.options.request, ImageSettings::parse(shared.settings), run.options.map,
        {.environment = own_environment()}, own_environment(), SitePolicy::read(), log);
    Result<void> sent = made ? Result<void>() : Result<void>(made.error());
    if (made) {
      const auto text = sealed_memory_file("edits", made->edits.serialize());
      const int passed[] = {made->mounts.get(), text ? text->get() : -1};
      sent = text ? send_struct(line.second.get(), char{'m'}, passed) : Result<void>(text.error());
    }
    if (!sent) report_error(sent.error().message());
    return sent ? 0 : 1;
  };
  auto child = SPC_TRY(Child::run(make, "make the container", 0));
  line.second.reset();
  char kind = 0;
  auto received = receive_struct(line.first.get(), kind, 2);
  child.wait();
  // Reported by the child.
  if (!received || received->size() != 2) return Error(ErrorKind::system, "");
  shared.mounts = std::move((*received)[0]);
  shared.edits = SPC_TRY(read_file((*received)[1].get(), 64 << 20));
  shared.alive = std::move(mounted);
  return shared;
}

Result<void> enter_shared(UserRun& run, const SharedContainer& shared,
                          std::map<std::string, std::string>& environment) {
  StderrLog log;
  const SitePolicy site = SitePolicy::read();
  auto user = identity_inside(run.options.map);
  const auto edits = HookEdits::parse(shared.edits);
  ContainerSpec spec;
  spec.image = run.options.request.image;
  spec.settings = ImageSettings::parse(shared.settings);
  spec.user = user;
  HookContext context = hook_context(run.options.request, environment, site);
  context.remap_root = run.options.map == RootMap::root;
  auto hooks = SPC_TRY(StepHooks::find_for_task(std::move(context), edits, log));
  add_image(hooks.context(), spec);
  SPC_TRY(hooks.task_on_host());
  if (::setns(shared.user.get(), CLONE_NEWUSER) != 0)
    return Error::from_errno(errno, "join the container's user namespace");
  if (::setns(shared.mounts.get(), CLONE_NEWNS) != 0)
    return Error::from_errno(errno, "join the container");
  if (spec.settings.in_files) read_image_files(environment, spec.settings, nullptr);
  return run.begin(spec.settings, shared.settings, edits, hooks, std::move(user), environment, log);
}

Result<int> run_shared(UserRun& run, const std::string& key) {
  const auto shared = SPC_TRY(join_shared_container(key, [&] { return make_to_share(run); }));
  if (shared.failed) return kNoContainer;
  return supervise_noted(run.places, run.options, shared.image, [&] {
    auto environment = own_environment();
    auto entered = enter_shared(run, shared, environment);
    return become(std::move(entered), run.options, run.commands, environment);
  });
}

/// Returns the key of processes that share a container: the same launch or --share key, the same
/// image and options. Empty if the container is not shared.
std::string share_key(const Arguments& arguments) {
  const std::string asked = arguments.value("share");
  if (asked == "no" || arguments.has("explain") || std::getenv(kStartedByEnroot) != nullptr)
    return {};
  std::string key = asked.empty() ? launch_key(own_environment()) : "key " + asked;
  if (key.empty()) return {};
  key += '\n' + arguments.words[0];
  for (const auto& [option, values] : arguments.options) {
    key.append("\n").append(option);
    for (const std::string& value : values) key.append("=").append(value);
  }
  return key;
}

Result<int> run_as_user(const Places& places, const Arguments& arguments, RunOptions& options,
                        const Commands* fixed) {
  if ((options.request.namespaces & ~std::uint32_t{own_cgroup}) != 0) {
    return Error(ErrorKind::invalid,
                 "--unshare: only a step of srun can have its own net, ipc, uts and pid")
        .hint("--unshare=cgroup");
  }
  SPC_TRY(check_kernel());  // before a useless pull
  UserRun run(arguments, options, places, fixed);
  run.config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
  if (!options.request.writable) options.request.writable = run.config.writable;
  if (!options.request.mount_home && run.config.mount_home) {
    const auto usable = check_home(UserIdentity::of_job(own_environment()).home, false);
    if (!usable) report_error("warning: not mounted: " + usable.error().message());
    options.request.mount_home = usable.has_value();
  }
  const std::string key = share_key(arguments);
  run.shared = !key.empty();
  run.security =
      SPC_TRY(read_security(options.request, SitePolicy::read(), options.map == RootMap::root));
  return key.empty() ? run_alone(run) : run_shared(run, key);
}

/// As root: starts the container through the agent, as a step of root does.
Result<int> run_as_root(const Places& places, const Arguments& arguments, const RunOptions& options,
                        const Commands* fixed) {
  for (const char* option :
       {"remap-root", "changes", "entrypoint", "platform", "share", "add-layer"}) {
    if (arguments.has(option)) {
      return Error(ErrorKind::invalid, formatted("--{} is for unprivileged containers", option))
          .hint("run it as a non-root user");
    }
  }
  const std::string& name = arguments.words[0];
  Commands commands = fixed != nullptr ? *fixed : Commands{arguments.rest};
  const auto wanted = SPC_TRY(parse_wanted(arguments, name));
  if (commands.front().empty()) {
    const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
    SPC_TRY(pull_into_node_store(places, config, wanted));
    const auto store = SPC_TRY(open_store(places.store));
    const auto image = SPC_TRY(find_image(store.get(), name, config.default_registry));
    commands =
        SPC_TRY(command_of(arguments, image.record ? image.record->settings : std::string()));
  }
  auto step_options = options_of_step(arguments, options.request);
  if (wanted.pull) step_options.push_back(std::string("container-pull=") + name_of(*wanted.pull));
  auto step = SPC_TRY(NodeStep::open(options.image, wanted.quiet));
  return supervise_noted(places, options, options.image, [&] {
    auto environment = own_environment();
    auto entered = step.enter(step_options, environment, commands.front());
    return become(std::move(entered), options, commands, environment);
  });
}

Result<int> run_detached(const Places& places, const Arguments& arguments, RunOptions& options) {
  if (options.name.empty()) options.name = "container-" + std::to_string(::getpid());
  if (options.name.find('/') != std::string::npos)
    return Error(ErrorKind::invalid, "--name: a name has no slash");
  if (find_container(places.running, options.name)) {
    return Error(ErrorKind::invalid,
                 formatted("--name: container {} is running already", in_quotes(options.name)))
        .hint(formatted("scontainer stop {}, or another name", options.name));
  }
  const std::string directory = places.running.substr(0, places.running.rfind('/')) + "/output";
  SPC_TRY(make_directories(directory));
  const std::string output = directory + "/" + options.name;
  const int status = SPC_TRY(Detached::run(output, [&](Detached& detached) {
    options.detached = &detached;
    const auto ran = places.own_store ? run_as_user(places, arguments, options, nullptr)
                                      : run_as_root(places, arguments, options, nullptr);
    if (!ran) report_error(ran.error().message());
    return ran ? *ran : kNoContainer;
  }));
  if (status == 0) std::printf("%s\n%s\n", options.name.c_str(), output.c_str());
  return status;
}

/// Outside Slurm --gpu, as Apptainer's --nv, only warns on a machine without a GPU.
void leave_out_missing_gpu(LaunchRequest& request) {
  const HookContext context = hook_context(request, own_environment(), SitePolicy::read());
  if (!request.gpu.value_or(false) || has_gpus(context)) return;
  report_error("warning: --gpu: this machine has no GPU; the container starts without one");
  request.gpu.reset();
}

Result<int> run_container(const Arguments& arguments, const Commands* fixed) {
  const auto places = SPC_TRY(Places::find());
  auto options = SPC_TRY(parse_options(arguments));
  leave_out_missing_gpu(options.request);
  if (arguments.has("detach")) {
    if (fixed != nullptr) return contradiction("shell", "--detach");
    if (options.request.explain) return contradiction("--explain", "--detach");
    return run_detached(places, arguments, options);
  }
  if (fixed != nullptr)
    options.prompt = printable(
        options.name.empty() ? options.image.substr(options.image.rfind('/') + 1) : options.name);
  return places.own_store ? run_as_user(places, arguments, options, fixed)
                          : run_as_root(places, arguments, options, fixed);
}

}  // namespace

Result<int> run_run(const Arguments& arguments) { return run_container(arguments, nullptr); }

Result<int> run_shell(const Arguments& arguments) {
  const Commands commands = shells();
  return run_container(arguments, &commands);
}

}  // namespace spc::tool
