#include "hook_engine/step_hooks.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <optional>

#include "base/clock.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/process/supervised.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/hook_json.hpp"

namespace spc {

// --- site program ---

namespace {

constexpr int kItsOwnFile = 3;

/// Drops all capabilities from every set. Uses raw calls like every child, with the kernel's
/// structures in place of libcap's.
bool give_up_capabilities() {
  struct {
    std::uint32_t version = 0x20080522;  // _LINUX_CAPABILITY_VERSION_3
    int pid = 0;
  } header;
  const std::uint32_t none[6] = {};
  ::prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  return ::syscall(SYS_capset, &header, none) == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

std::vector<std::string> environment_of(const ProgramEdit& program, const HookContext& context) {
  std::vector<std::string> environment{
      "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"};
  const std::string* home = context.of_job("HOME");
  const std::string* user = context.of_job("USER");
  if (!context.home.empty()) {
    environment.push_back("HOME=" + context.home);
  } else if (home != nullptr) {
    environment.push_back("HOME=" + *home);
  }
  const std::string name = !context.user.empty() ? context.user : user != nullptr ? *user : "";
  if (!name.empty()) environment.insert(environment.end(), {"USER=" + name, "LOGNAME=" + name});
  const auto is_plain = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (const auto& [variable, value] : context.job) {
    if (!variable.starts_with("SLURM_") || !std::all_of(variable.begin(), variable.end(), is_plain))
      continue;
    environment.push_back(variable + "=" + value);
  }
  environment.insert(environment.end(), program.env.begin(), program.env.end());
  return environment;
}

/// Returns its time limit, which is hook_timeout of config.toml by default.
std::chrono::seconds limit_of(const ProgramEdit& program, const HookContext& context) {
  const std::string text = context.setting("hook_timeout", "30");
  std::uint64_t seconds = 30;
  std::from_chars(text.data(), text.data() + text.size(), seconds);
  return std::chrono::seconds(program.timeout != 0 ? program.timeout
                                                   : std::max<std::uint64_t>(seconds, 1));
}

}  // namespace

Result<std::string> run_site_program(const std::string& hook, const ProgramEdit& program,
                                     std::string_view input, const HookContext& context, Log& log,
                                     int descriptor) {
  constexpr std::size_t kLastLines = 3;
  std::deque<std::string> last;
  const auto tell = [&](std::string_view line) {
    last.emplace_back(line);
    if (last.size() > kLastLines) last.pop_front();
    log.write(LogLevel::info, formatted("hook {}: {}", hook, printable(line)));
  };
  Program process{.path = program.path,
                  .arguments = program.args,
                  .environment = environment_of(program, context),
                  .descriptors = {},
                  .group = Program::Group::session,
                  .signals = Program::Signals::defaults,
                  .umask = 022,
                  .directory = "/",
                  .prepare = give_up_capabilities};
  if (program.args.empty()) process.arguments = {program.path};
  if (descriptor >= 0) {
    process.descriptors.push_back(
        {descriptor, kItsOwnFile});  // stays open: the interpreter of a script opens it
    process.executed = kItsOwnFile;
  }
  const std::string what = "run " + in_quotes(program.path);
  const RunLimits limits{.time = limit_of(program, context), .output = 1 << 20};
  auto end = run_supervised(std::move(process), input, limits, tell);
  if (!end)
    return Error::from_errno(end.error().sys_errno(), what)
        .hint("its interpreter must exist on the node");
  if (end->good()) return std::move(end->output);
  std::string lines;
  for (const std::string& line : last) lines += (lines.empty() ? "" : "\n") + line;
  return Error(ErrorKind::system, formatted("{}: {}", what, end->reason(limits, lines)));
}

// --- oci hook ---

namespace {

constexpr char kOciVersion[] = "1.0.2";

/// A directory with config.json, with the members that a hook of a step can rely on.
class Bundle {
 public:
  static Result<Bundle> make(const std::string& root, const HookContext& context) {
    Bundle bundle;
    char path[] = "/tmp/spank-container-bundle-XXXXXX";
    if (::mkdtemp(path) == nullptr) return Error::from_errno(errno, "make a bundle in /tmp");
    bundle.path_ = path;
    Json config{{"ociVersion", kOciVersion},
                {"annotations", annotations_of(context)},
                {"mounts", Json::array()}};
    config["root"] = Json{{"path", root}, {"readonly", !context.writable}};
    config["process"] = Json{{"args", context.command}, {"cwd", "/"}, {"env", Json::array()}};
    config["process"]["user"] = Json{{"uid", context.uid}, {"gid", context.gid}};
    for (const auto& [name, value] : context.image)
      config["process"]["env"].push_back(name + "=" + value);
    const UniqueFd file(
        ::open(bundle.file().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) return Error::from_errno(errno, "make " + in_quotes(bundle.file()));
    SPC_TRY(write_all(file.get(), config.str(1)));
    return bundle;
  }
  Bundle(Bundle&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  Bundle(const Bundle&) = delete;
  Bundle& operator=(const Bundle&) = delete;
  ~Bundle() {
    if (path_.empty()) return;
    ::unlink(file().c_str());
    ::rmdir(path_.c_str());
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  Bundle() = default;
  [[nodiscard]] std::string file() const { return path_ + "/config.json"; }
  std::string path_;
};

std::string value_of(const HookContext& context, const char* name) {
  const std::string* value = context.of_job(name);
  return value == nullptr ? "0" : *value;
}

}  // namespace

Result<void> run_oci_hook(const std::string& hook, const ProgramEdit& program,
                          std::string_view status, const std::string& root,
                          const HookContext& context, Log& log) {
  const Bundle bundle = SPC_TRY(Bundle::make(root, context));
  Json state{{"ociVersion", kOciVersion},
             {"status", status},
             {"bundle", bundle.path()},
             {"annotations", annotations_of(context)}};
  state["id"] = value_of(context, "SLURM_JOB_ID") + "." + value_of(context, "SLURM_STEP_ID") + "." +
                value_of(context, "SLURM_NODEID");
  if (status != "stopped") state["pid"] = ::getpid();
  SPC_TRY(run_site_program(hook, program, state.str(), context, log));
  return {};
}

// --- hook edits ---

namespace {

void add_pairs(std::string& records, std::string_view key,
               const std::map<std::string, std::string>& pairs) {
  for (const auto& [name, value] : pairs) add_record(records, key, name + "=" + value);
}

}  // namespace

std::string HookEdits::serialize() const {
  std::string records;
  for (const std::string& name : off) add_record(records, "off", name);
  for (const OfHook& of_hook : of_hooks) {
    const Edits& edits = of_hook.edits;
    add_record(records, "hook", of_hook.hook);
    for (const std::string& name : edits.environment.unset) add_record(records, "unset", name);
    add_pairs(records, "set", edits.environment.set);
    add_pairs(records, "prepend", edits.environment.prepend);
    add_pairs(records, "default", edits.environment.defaults);
    for (const LimitEdit& limit : edits.limits)
      add_record(records, "limit", limit.name + "=" + std::to_string(limit.soft));
    for (const std::string& note : edits.notes) add_record(records, "note", note);
    for (const std::string& warning : edits.warnings) add_record(records, "warning", warning);
  }
  for (const auto& [hook, microseconds] : took) {
    add_record(records, "hook", hook);
    add_record(records, "took", std::to_string(microseconds));
  }
  return records;
}

HookEdits HookEdits::parse(std::string_view records) {
  HookEdits parsed;
  for (Records record(records); record.next();) {
    const std::string_view key = record.key();
    const std::string value(record.value());
    if (key == "off") parsed.off.push_back(value);
    if (key == "hook") parsed.of_hooks.push_back({value});
    if (parsed.of_hooks.empty()) continue;
    Edits& edits = parsed.of_hooks.back().edits;
    if (key == "unset") edits.environment.unset.insert(value);
    if (key == "note") edits.notes.push_back(value);
    if (key == "warning") edits.warnings.push_back(value);
    if (key == "took")
      std::from_chars(value.data(), value.data() + value.size(),
                      parsed.took[parsed.of_hooks.back().hook]);
    const auto inner = value.find('=');
    if (inner == std::string::npos) continue;
    const std::string name = value.substr(0, inner);
    const std::string rest = value.substr(inner + 1);
    if (key == "set") edits.environment.set[name] = rest;
    if (key == "prepend") edits.environment.prepend[name] = rest;
    if (key == "default") edits.environment.defaults[name] = rest;
    if (key == "limit") {
      std::uint64_t soft = 0;
      std::from_chars(rest.data(), rest.data() + rest.size(), soft);
      edits.limits.push_back({name, soft});
    }
  }
  return parsed;
}

// --- hooks of all kinds ---

/// A hook of any kind. The functions are those of `Hook`; by default they have no effect.
class StepHook {
 public:
  explicit StepHook(std::string named) : name(std::move(named)) {}
  virtual ~StepHook() = default;
  StepHook(const StepHook&) = delete;
  StepHook& operator=(const StepHook&) = delete;

  [[nodiscard]] virtual bool wanted(const HookContext&) const = 0;
  /// Returns whether a failure is only a warning, and the hook then has no edits.
  [[nodiscard]] virtual bool optional() const { return false; }
  [[nodiscard]] virtual bool is_of_site() const { return false; }
  virtual Result<void> prepare(const HookContext&, Log&, Edits&) { return {}; }
  virtual Result<void> create_on_host(const HookContext&, const Edits&, Log&) { return {}; }
  virtual Result<void> create(const HookContext&, Edits&) { return {}; }
  virtual Result<void> task_on_host(const HookContext&, Log&) { return {}; }
  virtual Result<void> task(const HookContext&, Edits&) { return {}; }
  virtual Result<void> start(const HookContext&, Log&) { return {}; }
  /// Returns whether task_on_host() has work to do.
  [[nodiscard]] virtual bool asks_host() const { return false; }
  /// Returns whether stop() has work to do.
  [[nodiscard]] virtual bool has_stop() const { return false; }
  virtual Result<void> stop(const HookContext&, Log&) { return {}; }

  const std::string name;  ///< the stem of its file name, or the built-in's name
};

namespace {

class BuiltIn final : public StepHook {
 public:
  explicit BuiltIn(const Hook& hook) : StepHook(hook.name), hook_(hook) {}
  [[nodiscard]] bool wanted(const HookContext& context) const override {
    return hook_.when == nullptr || hook_.when(context);
  }
  Result<void> prepare(const HookContext& context, Log&, Edits& edits) override {
    if (hook_.prepare != nullptr) edits = SPC_TRY(hook_.prepare(context));
    return {};
  }
  Result<void> create(const HookContext& context, Edits& edits) override {
    return hook_.create == nullptr ? Result<void>() : hook_.create(context, edits);
  }
  Result<void> task(const HookContext& context, Edits& edits) override {
    if (hook_.task != nullptr) edits = SPC_TRY(hook_.task(context));
    return {};
  }

 private:
  const Hook& hook_;
};

class SiteHook : public StepHook {
 public:
  SiteHook(std::string stem, HookDescription description)
      : StepHook(std::move(stem)), description_(std::move(description)) {}
  [[nodiscard]] bool wanted(const HookContext& context) const override {
    return description_.when.hold(context);
  }
  [[nodiscard]] bool optional() const override { return description_.optional; }
  [[nodiscard]] bool is_of_site() const override { return true; }

 protected:
  [[nodiscard]] bool has_stage(std::string_view stage) const {
    return std::ranges::find(description_.stages, stage) != description_.stages.end();
  }
  [[nodiscard]] const ProgramEdit& program() const { return description_.program; }

 private:
  HookDescription description_;
};

/// Returns the container's root, after this process has entered it.
std::string own_root() { return "/proc/" + std::to_string(::getpid()) + "/root"; }

/// A file in the format of oci-hooks(5). prestart, createRuntime and createContainer run on the
/// host before the container is entered, startContainer in the container, poststop on the host when
/// all tasks have ended.
class OciHook final : public SiteHook {
 public:
  using SiteHook::SiteHook;
  Result<void> create_on_host(const HookContext& context, const Edits&, Log& log) override {
    for (const char* stage : {"prestart", "createRuntime", "createContainer"}) {
      if (has_stage(stage))
        SPC_TRY_DURING(stage, run_oci_hook(name, program(), "creating", own_root(), context, log));
    }
    return {};
  }
  Result<void> start(const HookContext& context, Log& log) override {
    if (!has_stage("startContainer")) return {};
    return run_oci_hook(name, program(), "created", "/", context, log);
  }
  [[nodiscard]] bool has_stop() const override { return has_stage("poststop"); }
  Result<void> stop(const HookContext& context, Log& log) override {
    return run_oci_hook(name, program(), "stopped", "/", context, log);
  }
};

/// A site program that reads a context as JSON and prints edits as JSON. It runs on the host in
/// every stage but `start`: for `create` and `task` it runs before the container is entered.
class ProgramHook final : public SiteHook {
 public:
  /// `file`: for `start`, which cannot see the host.
  ProgramHook(std::string stem, HookDescription description, UniqueFd file)
      : SiteHook(std::move(stem), std::move(description)), file_(std::move(file)) {}
  Result<void> prepare(const HookContext& context, Log& log, Edits& edits) override {
    edits = SPC_TRY(ask(context, "prepare", {}, log));
    return {};
  }
  Result<void> create_on_host(const HookContext& context, const Edits& prepared,
                              Log& log) override {
    if (has_stage("create")) created_ = SPC_TRY(ask(context, "create", prepared, log));
    return {};
  }
  Result<void> create(const HookContext&, Edits& edits) override {
    if (created_) edits = std::move(*created_);
    return {};
  }
  Result<void> task_on_host(const HookContext& context, Log& log) override {
    of_task_ = SPC_TRY(ask(context, "task", {}, log));
    return {};
  }
  Result<void> task(const HookContext&, Edits& edits) override {
    edits = std::move(of_task_);
    return {};
  }
  Result<void> start(const HookContext& context, Log& log) override {
    if (has_stage("start")) SPC_TRY(run(context, "start", {}, log));
    return {};
  }
  [[nodiscard]] bool has_stop() const override { return has_stage("stop"); }
  [[nodiscard]] bool asks_host() const override { return has_stage("task"); }
  Result<void> stop(const HookContext& context, Log& log) override {
    SPC_TRY(run(context, "stop", {}, log));
    return {};
  }

 private:
  Result<std::string> run(const HookContext& context, const std::string& stage,
                          const Edits& prepared, Log& log) const {
    const std::string input = context_to_json(
        {.stage = stage, .context = context, .prepared = prepared, .image_root = {}});
    const int file = stage == "start" ? file_.get() : -1;
    return run_site_program(name, program(), input, context, log, file);
  }

  Result<Edits> ask(const HookContext& context, const std::string& stage, const Edits& prepared,
                    Log& log) const {
    if (!has_stage(stage)) return Edits();
    const auto text = SPC_TRY(run(context, stage, prepared, log));
    const std::string where = formatted("what {} printed", in_quotes(program().path));
    const bool says_nothing = text.find_first_not_of(" \t\r\n") == std::string::npos;
    if (says_nothing) return stage == "create" ? prepared : Edits();
    auto edits = SPC_TRY_DURING(where, edits_from_json(text));
    SPC_TRY_DURING(where, check_stage(edits, stage, prepared));
    return edits;
  }

  UniqueFd file_;
  std::optional<Edits> created_;
  Edits of_task_;
};

}  // namespace

// --- step hooks ---

namespace {

std::string step_of(const std::string& hook) { return "hook " + hook; }

Result<void> obey_refusal(const std::string& hook, const Edits& edits) {
  if (edits.refusal.empty()) return {};
  return Error(ErrorKind::refused, formatted("{}: {}", step_of(hook), printable(edits.refusal)));
}

bool is_in(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

/// Runs a CDI hook; only programs owned by root are allowed.
Result<void> run_cdi_hook(const std::string& hook, const ProgramEdit& program,
                          const HookContext& context, Log& log) {
  SPC_TRY(open_trusted_file(program.path, "program", owner_of_the_node()));
  return run_oci_hook(hook, program, "creating", own_root(), context, log);
}

/// Returns the built-in hooks of these names as replaced ones.
std::vector<ShellHook> replaced(const std::vector<std::string>& names) {
  std::vector<ShellHook> hooks;
  for (const std::string& name : names) hooks.push_back({name, "", false});
  return hooks;
}

}  // namespace

StepHooks::StepHooks(HookContext context, Log& log, std::vector<ShellHook> shell_hooks)
    : context_(std::move(context)), log_(&log), shell_hooks_(std::move(shell_hooks)) {}
StepHooks::StepHooks(StepHooks&&) noexcept = default;
StepHooks::~StepHooks() = default;

Result<StepHooks> StepHooks::find(HookContext context, Log& log, const std::string& users) {
  auto shell_hooks = SPC_TRY(find_shell_hooks(context, users));
  return find_in(SPC_HOOKS_DIR, std::move(context), log, std::move(shell_hooks));
}

Result<StepHooks> StepHooks::find_for_task(HookContext context, const HookEdits& edits, Log& log) {
  return find_in(SPC_HOOKS_DIR, std::move(context), log, replaced(edits.off));
}

Result<StepHooks> StepHooks::find_in(const std::string& directory, HookContext context, Log& log,
                                     std::vector<ShellHook> shell_hooks) {
  StepHooks found(std::move(context), log, std::move(shell_hooks));
  const auto files = read_hook_directory(directory, owner_of_the_node());
  if (!files) return for_administrator(files.error());
  found.add_builtins(*files);
  if (auto added = found.add_files(*files); !added) return for_administrator(added.error());
  for (const ShellHook& hook : found.shell_hooks_)
    found.origins_.emplace_back(hook.name, hook.path);
  found.sort();
  return found;
}

StepHooks StepHooks::inside(HookContext context, const HookEdits& edits, HookEdits said, Log& log) {
  StepHooks hooks(std::move(context), log, replaced(edits.off));
  hooks.add_builtins({});
  hooks.said_ = std::move(said);
  hooks.sort();
  return hooks;
}

void StepHooks::sort() {
  sort_few(hooks_, [](const auto& a, const auto& b) { return a->name < b->name; });
  sort_few(origins_, [](const auto& a, const auto& b) { return a.first < b.first; });
}

void StepHooks::add_builtins(const std::vector<HookFile>& files) {
  const auto off = context_.settings_of("hooks_off");
  const bool all_off = is_in(off, "all");
  for (const Hook* hook : builtin_hooks()) {
    const auto of_site = std::find_if(files.begin(), files.end(), [&](const HookFile& file) {
      return file.stem == hook->name && file.kind == HookFile::Kind::program;
    });
    const auto is_this = [&](const ShellHook& shell) { return shell.name == hook->name; };
    off_.emplace_back(hook->name);
    if (all_off || is_in(off, hook->name)) {
      origins_.emplace_back(hook->name, "built in, off (hooks_off)");
    } else if (of_site != files.end()) {
      if (of_site->off)
        origins_.emplace_back(hook->name, formatted("built in, off ({})", of_site->path));
    } else if (std::ranges::none_of(shell_hooks_, is_this)) {
      off_.pop_back();
      hooks_.push_back(std::make_unique<BuiltIn>(*hook));
      origins_.emplace_back(hook->name, "built in");
    }
  }
}

Result<void> StepHooks::add_files(const std::vector<HookFile>& files) {
  const uid_t owner = owner_of_the_node();
  const auto off = context_.settings_of("hooks_off");
  const auto is_off = [&](const HookFile& file) {
    return is_in(off, file.stem) || is_in(off, "all");
  };
  std::map<std::string, HookDescription> descriptions;  // by stem
  std::vector<std::string> of_oci;                      // programs that are no hooks on their own
  for (const HookFile& file : files) {
    if (file.kind != HookFile::Kind::description || file.off || is_off(file)) continue;
    auto description = SPC_TRY_DURING(step_of(file.stem), HookDescription::read(file.path, owner));
    if (!description.program.path.empty()) {
      of_oci.push_back(description.program.path);
      origins_.emplace_back(file.stem, file.path);
      if (std::ranges::any_of(description.stages,
                              [](const auto& s) { return s != "startContainer"; }))
        SPC_TRY_DURING(step_of(file.stem) + ": " + in_quotes(file.path),
                       open_trusted_file(description.program.path, "program of a hook", owner));
      hooks_.push_back(std::make_unique<OciHook>(file.stem, std::move(description)));
    } else if (std::none_of(files.begin(), files.end(), [&](const auto& other) {
                 return other.stem == file.stem && &other != &file;
               })) {
      return Error(ErrorKind::invalid, formatted("{}: {}: hook.path: is missing",
                                                 step_of(file.stem), in_quotes(file.path)))
          .hint("add hook.path, or the program beside it under the same name");
    } else {
      descriptions.emplace(file.stem, std::move(description));
    }
  }
  for (const HookFile& file : files) {
    if (file.kind != HookFile::Kind::program || file.off || is_in(of_oci, file.path)) continue;
    if (is_off(file)) {
      origins_.emplace_back(file.stem, file.path + ", off (hooks_off)");
      continue;
    }
    const auto twin = std::find_if(files.begin(), files.end(), [&](const HookFile& other) {
      return !other.off && other.stem == file.stem && other.kind == file.kind &&
             other.path != file.path;
    });
    if (twin != files.end()) {
      return Error(ErrorKind::invalid,
                   formatted("{}: {} and {} have the same name", step_of(file.stem),
                             in_quotes(file.path), in_quotes(twin->path)))
          .hint("rename one: the suffix is ignored");
    }
    origins_.emplace_back(file.stem, file.path);
    HookDescription description = std::move(descriptions[file.stem]);
    description.program.path = file.path;
    // The default: once per step and node, in the stage that allows every edit.
    if (description.stages.empty()) description.stages = {"prepare"};
    UniqueFd opened;
    if (is_in(description.stages, "start"))
      opened = SPC_TRY_DURING(step_of(file.stem), open_trusted_file(file.path, "hook", owner));
    hooks_.push_back(
        std::make_unique<ProgramHook>(file.stem, std::move(description), std::move(opened)));
  }
  return {};
}

Result<void> StepHooks::run(const StepHook& hook, const std::function<Result<void>()>& function) {
  const std::uint64_t begin = now_us();
  auto done = function();
  durations_[hook.name] += now_us() - begin;
  if (done) return done;
  Error error = std::move(done).error().during(step_of(hook.name));
  if (hook.is_of_site()) error = for_administrator(error);
  if (!hook.optional()) return error;
  log_->write(LogLevel::warning, error.message());
  return {};
}

Result<HookEdits> StepHooks::prepare() {
  prepares_ = true;
  HookEdits prepared;
  for (const auto& hook : hooks_) {
    if (!hook->wanted(context_)) continue;
    Edits edits;
    SPC_TRY(run(*hook, [&] { return hook->prepare(context_, *log_, edits); }));
    SPC_TRY(obey_refusal(hook->name, edits));
    prepared.of_hooks.push_back({hook->name, std::move(edits)});
  }
  return prepared;
}

Result<void> StepHooks::create_on_host(const HookEdits& prepared) {
  for (const auto& hook : hooks_) {
    const auto of_hook = std::ranges::find(prepared.of_hooks, hook->name, &HookEdits::OfHook::hook);
    if (of_hook == prepared.of_hooks.end()) continue;
    SPC_TRY(run(*hook, [&] { return hook->create_on_host(context_, of_hook->edits, *log_); }));
    for (const ProgramEdit& program : of_hook->edits.programs) {
      SPC_TRY(run(*hook, [&] { return run_cdi_hook(hook->name, program, context_, *log_); }));
    }
  }
  return {};
}

Result<void> StepHooks::create(HookEdits& prepared) {
  for (const auto& hook : hooks_) {
    const auto of_hook = std::ranges::find(prepared.of_hooks, hook->name, &HookEdits::OfHook::hook);
    if (of_hook == prepared.of_hooks.end()) continue;
    SPC_TRY(run(*hook, [&] { return hook->create(context_, of_hook->edits); }));
    SPC_TRY(obey_refusal(hook->name, of_hook->edits));
  }
  prepared.off = off_;
  prepared.took = durations_;
  return {};
}

Result<void> StepHooks::task_on_host() {
  for (const auto& hook : hooks_) {
    if (hook->wanted(context_))
      SPC_TRY(run(*hook, [&] { return hook->task_on_host(context_, *log_); }));
  }
  return {};
}

bool StepHooks::asks_host() const {
  return std::ranges::any_of(
      hooks_, [&](const auto& hook) { return hook->asks_host() && hook->wanted(context_); });
}

Result<HookEdits> StepHooks::ask_host() {
  SPC_TRY(task_on_host());
  return task(true);
}

Result<HookEdits> StepHooks::task() {
  auto edits = SPC_TRY(task(false));
  std::ranges::copy(said_.of_hooks, std::back_inserter(edits.of_hooks));
  sort_few(edits.of_hooks, [](const auto& a, const auto& b) { return a.hook < b.hook; });
  return edits;
}

Result<HookEdits> StepHooks::task(bool by_site_alone) {
  HookEdits made;
  for (const auto& hook : hooks_) {
    if ((by_site_alone && !hook->asks_host()) || !hook->wanted(context_)) continue;
    Edits edits;
    SPC_TRY(run(*hook, [&] { return hook->task(context_, edits); }));
    SPC_TRY(obey_refusal(hook->name, edits));
    if (edits != Edits()) made.of_hooks.push_back({hook->name, std::move(edits)});
  }
  return made;
}

Result<void> StepHooks::start() {
  for (const auto& hook : hooks_) {
    if (hook->wanted(context_)) SPC_TRY(run(*hook, [&] { return hook->start(context_, *log_); }));
  }
  return {};
}

bool StepHooks::has_stop() const {
  return std::ranges::any_of(
      hooks_, [&](const auto& hook) { return hook->has_stop() && hook->wanted(context_); });
}

void StepHooks::stop(Log& log) const {
  for (const auto& hook : hooks_) {
    if (!hook->has_stop() || !hook->wanted(context_)) continue;
    auto done = hook->stop(context_, log);
    if (done) continue;
    const Error error = std::move(done).error().during(step_of(hook->name));
    log.write(LogLevel::warning, (hook->is_of_site() ? for_administrator(error) : error).message());
  }
}

bool StepHooks::runs_shell_hooks() const {
  return std::ranges::any_of(shell_hooks_, &ShellHook::runs);
}

std::string StepHooks::timing(const HookEdits& edits) const {
  auto took = edits.took;
  for (const auto& [hook, microseconds] : durations_) {
    // If this process prepared the hooks, its edits include the time that it has counted.
    took[hook] = prepares_ ? std::max(took[hook], microseconds) : took[hook] + microseconds;
  }
  std::uint64_t sum = 0;
  std::pair<std::string, std::uint64_t> slowest;
  for (const auto& [hook, microseconds] : took) {
    sum += microseconds;
    if (microseconds >= slowest.second) slowest = {hook, microseconds};
  }
  if (slowest.first.empty()) return "";
  return formatted("hooks took {} us, longest {} with {} us", sum, slowest.first, slowest.second);
}

}  // namespace spc
