#include "hook_engine/hook_conditions.hpp"

#include <regex.h>

#include <algorithm>

#include "base/format.hpp"

namespace spc {
namespace {

class Expression {
 public:
  explicit Expression(const std::string& text)
      : error_(::regcomp(&compiled_, text.c_str(), REG_EXTENDED | REG_NOSUB)) {}
  ~Expression() {
    if (error_ == 0) ::regfree(&compiled_);
  }
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;

  [[nodiscard]] std::string problem() const {
    char text[200] = {};
    if (error_ != 0) ::regerror(error_, &compiled_, text, sizeof text);
    return text;
  }
  [[nodiscard]] bool matches(const std::string& text) const {
    return error_ == 0 && ::regexec(&compiled_, text.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  regex_t compiled_{};
  int error_;
};

bool matches(const std::string& expression, const std::string& text) {
  return Expression(expression).matches(text);
}

Result<void> check_one(const char* where, const std::string& expression) {
  const std::string problem = Expression(expression).problem();
  if (problem.empty()) return {};
  return Error(ErrorKind::invalid, formatted("{}: {} is not an extended regular expression: {}",
                                             where, in_quotes(expression), problem));
}

}  // namespace

bool HookConditions::empty() const {
  return !always && annotations.empty() && commands.empty() && !has_bind_mounts &&
         environment.empty();
}

Result<void> HookConditions::check() const {
  for (const auto& [key, value] : annotations) {
    SPC_TRY(check_one("when.annotations", key));
    SPC_TRY(check_one("when.annotations", value));
  }
  for (const std::string& command : commands) SPC_TRY(check_one("when.commands", command));
  for (const auto& [name, value] : environment) SPC_TRY(check_one("when.env", value));
  return {};
}

bool HookConditions::hold(const HookContext& context) const {
  if (always && !*always) return false;
  if (has_bind_mounts && !(*has_bind_mounts && context.has_bind_mounts)) return false;
  if (!annotations.empty()) {
    const auto known = annotations_of(context);
    const auto is_there = [&](const auto& wanted) {
      return std::any_of(known.begin(), known.end(), [&](const auto& annotation) {
        return matches(wanted.first, annotation.first) && matches(wanted.second, annotation.second);
      });
    };
    if (!std::all_of(annotations.begin(), annotations.end(), is_there)) return false;
  }
  for (const auto& [name, value] : environment) {
    const std::string* of_job = context.of_job(name);
    if (of_job == nullptr || !matches(value, *of_job)) return false;
  }
  if (commands.empty()) return true;
  const auto is_this = [&](const std::string& command) {
    return matches(command, context.command.front());
  };
  return !context.command.empty() && std::any_of(commands.begin(), commands.end(), is_this);
}

std::map<std::string, std::string> annotations_of(const HookContext& context) {
  std::map<std::string, std::string> annotations;
  const auto add = [&](const char* name, const std::string* value) {
    if (value != nullptr && !value->empty())
      annotations[std::string("org.spank-container.") + name] = *value;
  };
  add("image", &context.image_name);
  add("mpi", &context.mpi);
  add("job", context.of_job("SLURM_JOB_ID"));
  add("step", context.of_job("SLURM_STEP_ID"));
  add("partition", context.of_job("SLURM_JOB_PARTITION"));
  return annotations;
}

}  // namespace spc
