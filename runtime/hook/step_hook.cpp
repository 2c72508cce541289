#include "hook/step_hook.hpp"

#include <algorithm>

namespace spc {
namespace {

class BuiltIn final : public StepHook {
 public:
  explicit BuiltIn(const Hook& hook) : StepHook(hook.name), hook_(hook) {}
  [[nodiscard]] std::string from() const override { return "built in"; }
  [[nodiscard]] bool wanted(const HookContext& context) const override { return hook_.when == nullptr || hook_.when(context); }
  Result<Edits> prepare(const HookContext& context) override {
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

std::string step_of(const std::string& hook) { return "hook " + hook; }

Result<void> obey_refusal(const std::string& hook, const Edits& edits) {
  if (edits.refusal.empty()) return {};
  return Error(ErrorKind::refused, step_of(hook) + ": " + edits.refusal);
}

}  // namespace

Result<StepHooks> StepHooks::find(const HookContext& context) {
  StepHooks found;
  const auto off = context.settings_of("hooks_off");
  for (const Hook* hook : builtin_hooks()) {
    if (std::find(off.begin(), off.end(), hook->name) == off.end()) found.hooks_.push_back(std::make_unique<BuiltIn>(*hook));
  }
  std::stable_sort(found.hooks_.begin(), found.hooks_.end(), [](const auto& a, const auto& b) { return a->name() < b->name(); });
  return found;
}

Result<std::vector<StepHooks::Outcome>> StepHooks::prepare(const HookContext& context) {
  std::vector<Outcome> outcomes;
  for (const auto& hook : hooks_) {
    if (!hook->wanted(context)) continue;
    auto edits = SPC_TRY_DURING(step_of(hook->name()), hook->prepare(context));
    SPC_TRY(obey_refusal(hook->name(), edits));
    outcomes.push_back({hook->name(), std::move(edits)});
  }
  return outcomes;
}

Result<void> StepHooks::create(const HookContext& context, std::vector<Outcome>& prepared) {
  for (const auto& hook : hooks_) {
    const auto of_hook = [&](const Outcome& outcome) { return outcome.hook == hook->name(); };
    auto outcome = std::find_if(prepared.begin(), prepared.end(), of_hook);
    if (outcome == prepared.end()) continue;
    SPC_TRY_DURING(step_of(hook->name()), hook->create(context, outcome->edits));
    SPC_TRY(obey_refusal(hook->name(), outcome->edits));
  }
  return {};
}

Result<std::vector<StepHooks::Outcome>> StepHooks::task(const HookContext& context) {
  std::vector<Outcome> outcomes;
  for (const auto& hook : hooks_) {
    if (!hook->wanted(context)) continue;
    auto edits = SPC_TRY_DURING(step_of(hook->name()), hook->task(context));
    SPC_TRY(obey_refusal(hook->name(), edits));
    if (edits != Edits()) outcomes.push_back({hook->name(), std::move(edits)});
  }
  return outcomes;
}

}  // namespace spc
