#include "hook_engine/step_hook.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/format.hpp"
#include "base/trusted_file.hpp"
#include "hook_engine/oci_hook.hpp"
#include "hook_engine/program_hook.hpp"
#include "hook_engine/site_program.hpp"
#include "hooks/builtin/builtin_hooks.hpp"
#include "hooks/sort_few.hpp"

namespace spc {
namespace {

constexpr char kBuiltIn[] = "built in";

class BuiltIn final : public StepHook {
 public:
  explicit BuiltIn(const Hook& hook) : StepHook(hook.name), hook_(hook) {}
  [[nodiscard]] std::string from() const override { return kBuiltIn; }
  [[nodiscard]] bool wanted(const HookContext& context) const override {
    return hook_.when == nullptr || hook_.when(context);
  }
  Result<Edits> prepare(const HookContext& context, Log&) override {
    return hook_.prepare == nullptr ? Result<Edits>(Edits()) : hook_.prepare(context);
  }
  Result<void> create(const HookContext& context, Edits& edits) override {
    return hook_.create == nullptr ? Result<void>() : hook_.create(context, edits);
  }
  Result<Edits> task(const HookContext& context) override {
    return hook_.task == nullptr ? Result<Edits>(Edits()) : hook_.task(context);
  }

 private:
  const Hook& hook_;
};

/// What a hook of the site has said for this task.
class Said final : public StepHook {
 public:
  explicit Said(StepHooks::Outcome outcome)
      : StepHook(std::move(outcome.hook)), edits_(std::move(outcome.edits)) {}
  [[nodiscard]] std::string from() const override { return "the site"; }
  Result<Edits> task(const HookContext&) override { return edits_; }

 private:
  Edits edits_;
};

std::string step_of(const std::string& hook) { return "hook " + hook; }

Result<void> obey_refusal(const std::string& hook, const Edits& edits) {
  if (edits.refusal.empty()) return {};
  return Error(ErrorKind::refused, formatted("{}: {}", step_of(hook), printable(edits.refusal)));
}

/// What a CDI file wants executed: root's programs alone.
Result<void> run_program(const std::string& hook, const ProgramEdit& wanted,
                         const HookContext& context, Log& log) {
  SPC_TRY(open_trusted_file(wanted.path, "program", owner_of_the_node()));
  OciProgram program{.path = wanted.path,
                     .args = wanted.args,
                     .env = wanted.env,
                     .limit = time_limit_of_hooks(context)};
  if (wanted.timeout != 0) program.limit = std::chrono::seconds(wanted.timeout);
  // The container's root, as soon as this process has entered it.
  return run_oci_hook(hook, program, "creating", "/proc/" + std::to_string(::getpid()) + "/root",
                      context, log);
}

bool is_in(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

/// Counts the time until it goes away.
class Stopwatch {
 public:
  explicit Stopwatch(std::uint64_t& sum) : sum_(sum), begin_(now_us()) {}
  ~Stopwatch() { sum_ += now_us() - begin_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::uint64_t& sum_;
  std::uint64_t begin_;
};

}  // namespace

Result<StepHooks> StepHooks::find(const HookContext& context, Log& log, const Replaced& replaced) {
  return find_in(SPC_HOOKS_DIR, context, log, replaced);
}

Result<StepHooks> StepHooks::find_in(const std::string& directory, const HookContext& context,
                                     Log& log, const Replaced& replaced) {
  StepHooks found(log);
  const uid_t owner = owner_of_the_node();
  const auto files = SPC_TRY(read_hook_directory(directory, owner));
  found.add_builtins(context, files, replaced);
  SPC_TRY(found.add_files(context, files, owner));
  for (const auto& [name, file] : replaced) found.origins_.emplace_back(name, file);
  found.sort();
  return found;
}

StepHooks StepHooks::inside(const HookContext& context, Log& log,
                            const std::vector<std::string>& off, const std::vector<Outcome>& said) {
  StepHooks hooks(log);
  Replaced replaced;
  for (const std::string& name : off) replaced[name] = "";
  hooks.add_builtins(context, {}, replaced);
  for (const Outcome& outcome : said) hooks.hooks_.push_back(std::make_unique<Said>(outcome));
  hooks.sort();
  return hooks;
}

void StepHooks::sort() {
  const auto by_name = [](const auto& a, const auto& b) { return a->name() < b->name(); };
  sort_few(hooks_, by_name);
  sort_few(origins_, [](const auto& a, const auto& b) { return a.first < b.first; });
}

void StepHooks::add_builtins(const HookContext& context, const std::vector<HookFile>& files,
                             const Replaced& replaced) {
  const auto off = context.settings_of("hooks_off");
  const bool all_off = is_in(off, "all");
  for (const Hook* hook : builtin_hooks()) {
    const auto of_site = std::find_if(files.begin(), files.end(), [&](const HookFile& file) {
      return file.stem == hook->name && file.kind == HookFile::Kind::program;
    });
    if (all_off || is_in(off, hook->name)) {
      origins_.emplace_back(hook->name, "built in, off (hooks_off)");
    } else if (of_site != files.end()) {
      if (of_site->off)
        origins_.emplace_back(hook->name, formatted("built in, off ({})", of_site->path));
    } else if (!replaced.contains(hook->name)) {
      hooks_.push_back(std::make_unique<BuiltIn>(*hook));
      origins_.emplace_back(hook->name, "built in");
    }
  }
}

Result<void> StepHooks::add_files(const HookContext& context, const std::vector<HookFile>& files,
                                  uid_t owner) {
  const auto off = context.settings_of("hooks_off");
  const auto is_off = [&](const HookFile& file) {
    return is_in(off, file.stem) || is_in(off, "all");
  };
  std::map<std::string, HookDescription> descriptions;  // by stem
  std::vector<std::string> of_oci;                      // programs that are no hooks by themselves
  for (const HookFile& file : files) {
    if (file.kind != HookFile::Kind::description || file.off || is_off(file)) continue;
    auto description = SPC_TRY_DURING(step_of(file.stem), HookDescription::read(file.path, owner));
    if (!description.path.empty()) {
      of_oci.push_back(description.path);
      origins_.emplace_back(file.stem, file.path);
      hooks_.push_back(
          SPC_TRY_DURING(step_of(file.stem), OciHook::make(file, std::move(description), owner)));
    } else if (std::none_of(files.begin(), files.end(), [&](const auto& other) {
                 return other.stem == file.stem && &other != &file;
               })) {
      return Error(ErrorKind::invalid, formatted("{}: {}: hook.path: is missing",
                                                 step_of(file.stem), in_quotes(file.path)))
          .hint("or add the program it describes, with the same name");
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
          .hint("the suffix is ignored");
    }
    origins_.emplace_back(file.stem, file.path);
    hooks_.push_back(SPC_TRY_DURING(
        step_of(file.stem), ProgramHook::make(file, std::move(descriptions[file.stem]), owner)));
  }
  return {};
}

template <typename T>
Result<T> StepHooks::run(const StepHook& hook, T otherwise,
                         const std::function<Result<T>()>& function) {
  const Stopwatch stopwatch(durations_[hook.name()]);
  auto done = function();
  if (done) return done;
  auto error = std::move(done).error().during(step_of(hook.name()));
  if (!hook.optional()) return error;
  log_->write(LogLevel::warning, error.message());
  return otherwise;
}

Result<void> StepHooks::run(const StepHook& hook, const std::function<Result<void>()>& function) {
  auto done = run<bool>(hook, false, [&]() -> Result<bool> {
    SPC_TRY(function());
    return true;
  });
  return done ? Result<void>() : std::move(done).error();
}

Result<std::vector<StepHooks::Outcome>> StepHooks::prepare(const HookContext& context) {
  std::vector<Outcome> outcomes;
  for (const auto& hook : hooks_) {
    if (!hook->wanted(context)) continue;
    auto edits = SPC_TRY(run<Edits>(*hook, Edits(), [&] { return hook->prepare(context, *log_); }));
    SPC_TRY(obey_refusal(hook->name(), edits));
    outcomes.push_back({hook->name(), std::move(edits)});
  }
  return outcomes;
}

Result<void> StepHooks::create_on_host(const HookContext& context,
                                       const std::vector<Outcome>& prepared) {
  for (const auto& hook : hooks_) {
    const auto of_hook = [&](const Outcome& outcome) { return outcome.hook == hook->name(); };
    const auto outcome = std::find_if(prepared.begin(), prepared.end(), of_hook);
    if (outcome == prepared.end()) continue;
    SPC_TRY(run(*hook, [&] { return hook->create_on_host(context, outcome->edits, *log_); }));
    for (const ProgramEdit& program : outcome->edits.programs) {
      SPC_TRY(run(*hook, [&] { return run_program(hook->name(), program, context, *log_); }));
    }
  }
  return {};
}

Result<void> StepHooks::create(const HookContext& context, std::vector<Outcome>& prepared) {
  for (const auto& hook : hooks_) {
    const auto of_hook = [&](const Outcome& outcome) { return outcome.hook == hook->name(); };
    auto outcome = std::find_if(prepared.begin(), prepared.end(), of_hook);
    if (outcome == prepared.end()) continue;
    SPC_TRY(run(*hook, [&] { return hook->create(context, outcome->edits); }));
    SPC_TRY(obey_refusal(hook->name(), outcome->edits));
  }
  return {};
}

Result<void> StepHooks::task_on_host(const HookContext& context) {
  for (const auto& hook : hooks_) {
    if (hook->wanted(context))
      SPC_TRY(run(*hook, [&] { return hook->task_on_host(context, *log_); }));
  }
  return {};
}

bool StepHooks::asks_host(const HookContext& context) const {
  return std::ranges::any_of(
      hooks_, [&](const auto& hook) { return hook->asks_host() && hook->wanted(context); });
}

Result<std::vector<StepHooks::Outcome>> StepHooks::said_on_host(const HookContext& context) {
  SPC_TRY(task_on_host(context));
  return task(context, [](const StepHook& hook) { return hook.asks_host(); });
}

std::vector<std::string> StepHooks::built_in_off() const {
  std::vector<std::string> off;
  for (const Hook* known : builtin_hooks()) {
    const auto is_known = [&](const auto& hook) {
      return hook->name() == known->name && hook->from() == kBuiltIn;
    };
    if (std::ranges::none_of(hooks_, is_known)) off.emplace_back(known->name);
  }
  return off;
}

Result<std::vector<StepHooks::Outcome>> StepHooks::task(const HookContext& context) {
  return task(context, [](const StepHook&) { return true; });
}

Result<std::vector<StepHooks::Outcome>> StepHooks::task(
    const HookContext& context, const std::function<bool(const StepHook&)>& which) {
  std::vector<Outcome> outcomes;
  for (const auto& hook : hooks_) {
    if (!which(*hook) || !hook->wanted(context)) continue;
    auto edits = SPC_TRY(run<Edits>(*hook, Edits(), [&] { return hook->task(context); }));
    SPC_TRY(obey_refusal(hook->name(), edits));
    if (edits != Edits()) outcomes.push_back({hook->name(), std::move(edits)});
  }
  return outcomes;
}

Result<void> StepHooks::start(const HookContext& context) {
  for (const auto& hook : hooks_) {
    if (hook->wanted(context)) SPC_TRY(run(*hook, [&] { return hook->start(context, *log_); }));
  }
  return {};
}

bool StepHooks::has_stop(const HookContext& context) const {
  return std::any_of(hooks_.begin(), hooks_.end(),
                     [&](const auto& hook) { return hook->has_stop() && hook->wanted(context); });
}

void StepHooks::stop(const HookContext& context, Log& log) const {
  for (const auto& hook : hooks_) {
    if (!hook->has_stop() || !hook->wanted(context)) continue;
    auto done = hook->stop(context, log);
    if (!done)
      log.write(LogLevel::warning, std::move(done).error().during(step_of(hook->name())).message());
  }
}

}  // namespace spc
