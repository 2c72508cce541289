#include "task/seccomp_profile.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/format.hpp"
#include "base/json/json_object.hpp"
#include "base/process/seccomp_filter.hpp"

namespace spc {
namespace {

/// The names that profiles have for machines: those of Go in `includes`.
#if defined(__x86_64__)
constexpr std::string_view kMachine = "amd64";
#elif defined(__aarch64__)
constexpr std::string_view kMachine = "arm64";
#else
constexpr std::string_view kMachine = "";
#endif

using Calls = std::vector<std::string>;
using Conditions = std::vector<scmp_arg_cmp>;

struct Action {
  std::uint32_t number = 0;
  bool takes_errno = false;
};

/// What has this name in a table; nothing: none has.
template <typename Value, std::size_t kSize>
std::optional<Value> named(const std::array<std::pair<std::string_view, Value>, kSize>& table,
                           std::string_view name) {
  const auto found = std::ranges::find(table, name, &std::pair<std::string_view, Value>::first);
  return found == table.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Action> action_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Action>, 7> kActions{
      {{"SCMP_ACT_ALLOW", {SCMP_ACT_ALLOW}},
       {"SCMP_ACT_ERRNO", {0, true}},
       {"SCMP_ACT_KILL", {SCMP_ACT_KILL_THREAD}},
       {"SCMP_ACT_KILL_THREAD", {SCMP_ACT_KILL_THREAD}},
       {"SCMP_ACT_KILL_PROCESS", {SCMP_ACT_KILL_PROCESS}},
       {"SCMP_ACT_LOG", {SCMP_ACT_LOG}},
       {"SCMP_ACT_TRAP", {SCMP_ACT_TRAP}}}};
  return named(kActions, name);
}

std::optional<scmp_compare> comparison_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, scmp_compare>, 7> kComparisons{
      {{"SCMP_CMP_NE", SCMP_CMP_NE},
       {"SCMP_CMP_LT", SCMP_CMP_LT},
       {"SCMP_CMP_LE", SCMP_CMP_LE},
       {"SCMP_CMP_EQ", SCMP_CMP_EQ},
       {"SCMP_CMP_GE", SCMP_CMP_GE},
       {"SCMP_CMP_GT", SCMP_CMP_GT},
       {"SCMP_CMP_MASKED_EQ", SCMP_CMP_MASKED_EQ}}};
  return named(kComparisons, name);
}

/// As libseccomp numbers it, with the error number that stands beside it, else `errno_default`.
Result<std::uint32_t> take_action(JsonObject& from, const char* key, const char* errno_key,
                                  std::uint64_t errno_default) {
  std::string name;
  SPC_TRY(from.take(key, name));
  std::uint64_t number = errno_default;
  SPC_TRY(from.take(errno_key, number));
  const auto action = action_of(name);
  if (!action) return from.problem(key, in_quotes(name) + " is not supported");
  constexpr std::uint64_t kMostErrno = 4095;
  if (number > kMostErrno) return from.problem(errno_key, "is not an error number");
  return action->takes_errno ? SCMP_ACT_ERRNO(static_cast<std::uint32_t>(number)) : action->number;
}

/// Whether this kernel is that version, MAJOR.MINOR, or later.
bool kernel_is_at_least(std::string_view wanted) {
  const auto version = [](std::string_view text) {
    std::pair<unsigned, unsigned> numbers{};
    const char* end = text.data() + text.size();
    const auto [next, failed] = std::from_chars(text.data(), end, numbers.first);
    if (failed == std::errc() && next != end) std::from_chars(next + 1, end, numbers.second);
    return numbers;
  };
  utsname kernel{};
  return ::uname(&kernel) == 0 && version(kernel.release) >= version(wanted);
}

/// What `includes` and `excludes` of an entry say.
struct Filter {
  std::vector<std::string> machines, capabilities;
  std::string kernel;

  static Result<Filter> take(JsonObject& entry, const char* key) {
    Filter filter;
    const Json* found = entry.take_any(key);
    if (found == nullptr) return filter;
    auto object = SPC_TRY(JsonObject::of(*found, entry.name_of(key)));
    SPC_TRY(object.take("arches", filter.machines));
    SPC_TRY(object.take("caps", filter.capabilities));
    SPC_TRY(object.take("minKernel", filter.kernel));
    SPC_TRY(object.nothing_left());
    return filter;
  }
  [[nodiscard]] bool has_machine() const {
    return std::find(machines.begin(), machines.end(), kMachine) != machines.end();
  }
  /// Of an entry's `includes`: each that is given must hold.
  [[nodiscard]] bool admits(const SeccompSubject& subject) const {
    return (machines.empty() || has_machine()) &&
           (capabilities.empty() || subject.has_capabilities) &&
           (kernel.empty() || kernel_is_at_least(kernel));
  }
  /// Of an entry's `excludes`: one that holds is enough.
  [[nodiscard]] bool bars(const SeccompSubject& subject) const {
    return has_machine() || (!capabilities.empty() && subject.has_capabilities) ||
           (!kernel.empty() && kernel_is_at_least(kernel));
  }
};

Result<scmp_arg_cmp> take_condition(JsonObject& argument) {
  std::uint64_t index = 0;
  std::uint64_t value = 0;
  std::uint64_t second = 0;
  std::string name;
  SPC_TRY(argument.take("index", index));
  SPC_TRY(argument.take("value", value));
  SPC_TRY(argument.take("valueTwo", second));
  SPC_TRY(argument.take("op", name));
  const auto comparison = comparison_of(name);
  if (!comparison) return argument.problem("op", in_quotes(name) + " is not a comparison");
  if (index > 5) return argument.problem("index", "is not 0 to 5");
  // With a mask the first value is the mask; without, the second counts for nothing.
  return scmp_arg_cmp{static_cast<unsigned>(index), *comparison, value, second};
}

Result<Conditions> take_conditions(JsonObject& entry) {
  Conditions conditions;
  const auto take = [&](JsonObject& argument) -> Result<void> {
    conditions.push_back(SPC_TRY(take_condition(argument)));
    return {};
  };
  SPC_TRY(entry.take_each("args", take));
  return conditions;
}

/// libseccomp takes one condition an argument: more of them are alternatives, as runc has it.
std::vector<Conditions> alternatives(const Conditions& conditions) {
  std::array<unsigned, 6> count{};
  for (const scmp_arg_cmp& condition : conditions) ++count.at(condition.arg);
  if (std::all_of(count.begin(), count.end(), [](unsigned n) { return n < 2; }))
    return {conditions};
  std::vector<Conditions> each;
  for (const scmp_arg_cmp& condition : conditions) each.push_back({condition});
  return each;
}

struct Profile {
  std::uint32_t otherwise = 0;
  std::uint64_t default_errno = EPERM;
  std::set<std::uint32_t> abis;
};

/// Of SCMP_ARCH_X86_64 and so on. Nothing: of a machine that this product does not run on.
std::optional<std::uint32_t> abi_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::uint32_t>, 5> kAbis{
      {{"SCMP_ARCH_X86_64", SCMP_ARCH_X86_64},
       {"SCMP_ARCH_X86", SCMP_ARCH_X86},
       {"SCMP_ARCH_X32", SCMP_ARCH_X32},
       {"SCMP_ARCH_AARCH64", SCMP_ARCH_AARCH64},
       {"SCMP_ARCH_ARM", SCMP_ARCH_ARM}}};
  return named(kAbis, name);
}

/// The ABIs, beside this machine's own, whose calls the profile decides, too. Calls of any other
/// kill.
Result<void> take_abis(JsonObject& document, Profile& profile) {
  const auto add = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const auto abi = abi_of(name);
      if (abi && *abi != seccomp_arch_native()) profile.abis.insert(*abi);
    }
  };
  std::vector<std::string> plain;
  SPC_TRY(document.take("architectures", plain));
  add(plain);
  return document.take_each("archMap", [&](JsonObject& row) -> Result<void> {
    std::string machine;
    std::vector<std::string> others;
    SPC_TRY(row.take("architecture", machine));
    SPC_TRY(row.take("subArchitectures", others));
    if (abi_of(machine) == seccomp_arch_native()) add(others);
    return {};
  });
}

class Compiler {
 public:
  Compiler(Profile profile, const SeccompSubject& subject)
      : profile_(std::move(profile)), subject_(subject), filter_(profile_.otherwise) {
    for (const std::uint32_t abi : profile_.abis) filter_.also_for(abi);
  }

  Result<void> add(JsonObject& entry) {
    Calls calls;
    std::string one;
    std::string comment;
    SPC_TRY(entry.take("names", calls));
    SPC_TRY(entry.take("name", one));  // docker's before 1.13
    SPC_TRY(entry.take("comment", comment));
    if (!one.empty()) calls.push_back(one);
    const auto action = SPC_TRY(take_action(entry, "action", "errnoRet", profile_.default_errno));
    entry.take_any("errno");  // podman's word for errnoRet, as a text
    const Conditions conditions = SPC_TRY(take_conditions(entry));
    const Filter includes = SPC_TRY(Filter::take(entry, "includes"));
    const Filter excludes = SPC_TRY(Filter::take(entry, "excludes"));
    if (!includes.admits(subject_) || excludes.bars(subject_) || action == profile_.otherwise)
      return {};
    for (const std::string& call : calls) {
      const int number = ::seccomp_syscall_resolve_name(call.c_str());
      if (number == __NR_SCMP_ERROR) continue;
      for (const Conditions& these : alternatives(conditions)) filter_.add(action, number, these);
    }
    return {};
  }

  Result<std::string> program() { return filter_.program(); }

 private:
  Profile profile_;
  SeccompSubject subject_;
  SeccompFilter filter_;
};

}  // namespace

Result<std::string> compile_seccomp_profile(std::string_view profile,
                                            const SeccompSubject& subject) {
  const Json document = SPC_TRY(JsonObject::parse(profile));
  auto object = SPC_TRY(JsonObject::of(document));
  Profile head;
  head.otherwise = SPC_TRY(take_action(object, "defaultAction", "defaultErrnoRet", EPERM));
  if (const Json* number = document.find("defaultErrnoRet"))
    head.default_errno = number->as_number();
  object.take_any("defaultErrno");
  object.take_any("flags");  // of the kernel's call: they speed up or log, and decide nothing
  SPC_TRY(take_abis(object, head));
  Compiler compiler(std::move(head), subject);
  SPC_TRY(object.take_each("syscalls", [&](JsonObject& entry) { return compiler.add(entry); }));
  SPC_TRY(object.nothing_left());
  return compiler.program();
}

Result<void> load_seccomp_program(std::string_view program) {
  std::vector<sock_filter> steps(program.size() / sizeof(sock_filter));
  std::memcpy(steps.data(), program.data(), steps.size() * sizeof(sock_filter));
  const sock_fprog given{static_cast<unsigned short>(steps.size()), steps.data()};
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &given) != 0)
    return Error::from_errno(errno, "load the seccomp profile");
  return {};
}

}  // namespace spc
