#include "hook_engine/program_hook.hpp"

#include <algorithm>

#include "base/format.hpp"
#include "base/trusted_file.hpp"
#include "hook_engine/site_program.hpp"
#include "hooks/json/context.hpp"
#include "hooks/json/edits.hpp"

namespace spc {

Result<std::unique_ptr<StepHook>> ProgramHook::make(const HookFile& file,
                                                    HookDescription description, uid_t owner) {
  // Once a step and node, and everything can be said.
  if (description.stages.empty()) description.stages = {"prepare"};
  auto hook = std::make_unique<ProgramHook>(file.stem, file.path, std::move(description));
  if (hook->has_stage("start")) hook->file_ = SPC_TRY(open_trusted_file(file.path, "hook", owner));
  return std::unique_ptr<StepHook>(std::move(hook));
}

bool ProgramHook::has_stage(std::string_view stage) const {
  return std::find(description_.stages.begin(), description_.stages.end(), stage) !=
         description_.stages.end();
}

HookProcess ProgramHook::process_for(const HookContext& context, const std::string& stage,
                                     const Edits& prepared) const {
  HookProcess process;
  process.program = path_;
  process.arguments =
      description_.args.empty() ? std::vector<std::string>{path_} : description_.args;
  process.environment = environment_of_hooks(context);
  process.environment.insert(process.environment.end(), description_.env.begin(),
                             description_.env.end());
  process.input =
      context_to_json({.stage = stage, .context = context, .prepared = prepared, .image_root = {}});
  process.limit = description_.timeout.value_or(time_limit_of_hooks(context));
  return process;
}

Result<Edits> ProgramHook::ask(const HookContext& context, const std::string& stage,
                               const Edits& prepared, Log& log) {
  const HookProcess process = process_for(context, stage, prepared);
  const auto text = SPC_TRY(run_site_program(name(), process, log));
  const std::string where = formatted("what {} printed", in_quotes(path_));
  const bool says_nothing = text.find_first_not_of(" \t\r\n") == std::string::npos;
  if (says_nothing) return stage == "create" ? prepared : Edits();
  auto edits = SPC_TRY_DURING(where, edits_from_json(text));
  SPC_TRY_DURING(where, check_stage(edits, stage, prepared));
  return edits;
}

Result<Edits> ProgramHook::prepare(const HookContext& context, Log& log) {
  return has_stage("prepare") ? ask(context, "prepare", {}, log) : Result<Edits>(Edits());
}

Result<void> ProgramHook::create_on_host(const HookContext& context, const Edits& prepared,
                                         Log& log) {
  if (has_stage("create")) created_ = SPC_TRY(ask(context, "create", prepared, log));
  return {};
}

Result<void> ProgramHook::create(const HookContext&, Edits& edits) {
  if (created_) edits = *created_;
  return {};
}

Result<void> ProgramHook::task_on_host(const HookContext& context, Log& log) {
  if (has_stage("task")) of_task_ = SPC_TRY(ask(context, "task", {}, log));
  return {};
}

Result<Edits> ProgramHook::task(const HookContext&) { return of_task_; }

Result<void> ProgramHook::start(const HookContext& context, Log& log) {
  if (!has_stage("start")) return {};
  HookProcess process = process_for(context, "start", {});
  process.descriptor = file_.get();
  SPC_TRY(run_site_program(name(), process, log));
  return {};
}

Result<void> ProgramHook::stop(const HookContext& context, Log& log) {
  SPC_TRY(run_site_program(name(), process_for(context, "stop", {}), log));
  return {};
}

}  // namespace spc
