// Confinement of a task's program: ambient capabilities, labels of security modules, faked calls of
// root, and the filter of system calls.

#include "task/security.hpp"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/process/sandbox.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- ambient ---

void keep_capabilities_when_executing() {
  cap_t set = ::cap_get_proc();
  if (set == nullptr) return;
  for (cap_value_t capability = 0; capability <= CAP_LAST_CAP; ++capability) {
    cap_flag_value_t has = CAP_CLEAR;
    if (::cap_get_flag(set, capability, CAP_PERMITTED, &has) != 0 || has == CAP_CLEAR) continue;
    ::cap_set_flag(set, CAP_INHERITABLE, 1, &capability, CAP_SET);
  }
  ::cap_set_proc(set);
  for (unsigned long capability = 0; capability <= CAP_LAST_CAP; ++capability) {
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0,
            0);  // capabilities that the process lacks are refused
  }
  ::cap_free(set);
}

// --- exec label ---

namespace {

constexpr ino_t kRootOfProc = 1;

const char* name_of(SecurityModule module) {
  return module == SecurityModule::apparmor ? "AppArmor" : "SELinux";
}

/// Opens a file of /proc itself, not below a mount in it: a label written to another file would
/// have no effect.
UniqueFd open_beneath(int directory, const char* path, int flags) {
  return open_resolved(directory, path, flags,
                       RESOLVE_BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS);
}

Result<UniqueFd> open_self() {
  const UniqueFd proc(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct statfs file_system {};
  struct stat status {};
  const bool is_proc = proc && ::fstatfs(proc.get(), &file_system) == 0 &&
                       file_system.f_type == PROC_SUPER_MAGIC &&
                       ::fstat(proc.get(), &status) == 0 && status.st_ino == kRootOfProc;
  UniqueFd self =
      is_proc ? open_beneath(proc.get(), "thread-self", O_PATH | O_DIRECTORY) : UniqueFd();
  if (self) return self;
  return Error(ErrorKind::unavailable, "set the security label: the container has no /proc")
      .hint("drop umount:/proc from --container-mounts");
}

}  // namespace

bool has_security_module(SecurityModule module, const std::string& root) {
  if (module == SecurityModule::selinux)
    return ::access((root + "/sys/fs/selinux/enforce").c_str(), F_OK) == 0;
  const UniqueFd file(
      ::open((root + "/sys/module/apparmor/parameters/enabled").c_str(), O_RDONLY | O_CLOEXEC));
  char enabled = 'N';
  return file && ::read(file.get(), &enabled, 1) == 1 && enabled == 'Y';
}

Result<void> write_exec_label(int self, SecurityModule module, const std::string& label) {
  const bool is_apparmor = module == SecurityModule::apparmor;
  UniqueFd file;
  if (is_apparmor) file = open_beneath(self, "attr/apparmor/exec", O_WRONLY);
  if (!file)
    file =
        open_beneath(self, "attr/exec", O_WRONLY);  // for SELinux, and for AppArmor before Linux
                                                    // 5.8
  if (!file)
    return Error::from_errno(errno,
                             formatted("set the {} label {}", name_of(module), in_quotes(label)));
  const std::string text = is_apparmor ? "exec " + label : label;
  if (::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return {};
  const int failed = errno;
  auto error = Error::from_errno(
      failed, formatted("set the {} label {}", name_of(module), in_quotes(label)));
  if (failed == ENOENT)
    return std::move(error).hint("load the profile on this node: apparmor_parser --replace FILE");
  if (failed == EINVAL)
    return std::move(error).hint(
        "the node's policy does not have it, or another security module answered");
  return std::move(error).hint("the node's policy must allow the change, also with no_new_privs");
}

Result<void> set_exec_label(SecurityModule module, const std::string& label) {
  const auto self = open_self();
  if (!self)
    return Error(self.error())
        .during(formatted("set the {} label {}", name_of(module), in_quotes(label)));
  return write_exec_label(self->get(), module, label);
}

// --- fake root ---

namespace {

/// IDs other than 0 do not exist in the namespace, so the kernel refuses calls that package scripts
/// rely on with EINVAL. capset and setting security.capability need no fake: the kernel does both
/// there. Numbers below 0 represent calls that this machine's own ABI lacks, such as the 32-bit
/// ones for 16-bit and 32-bit IDs.
constexpr std::array kOwners = {
    SCMP_SYS(chown),       SCMP_SYS(fchown),      SCMP_SYS(lchown),     SCMP_SYS(fchownat),
    SCMP_SYS(chown32),     SCMP_SYS(fchown32),    SCMP_SYS(lchown32),   SCMP_SYS(setuid),
    SCMP_SYS(setgid),      SCMP_SYS(setreuid),    SCMP_SYS(setregid),   SCMP_SYS(setresuid),
    SCMP_SYS(setresgid),   SCMP_SYS(setfsuid),    SCMP_SYS(setfsgid),   SCMP_SYS(setgroups),
    SCMP_SYS(setuid32),    SCMP_SYS(setgid32),    SCMP_SYS(setreuid32), SCMP_SYS(setregid32),
    SCMP_SYS(setresuid32), SCMP_SYS(setresgid32), SCMP_SYS(setfsuid32), SCMP_SYS(setfsgid32),
    SCMP_SYS(setgroups32)};

/// Other ABIs that programs can use on this machine: a call through one of them must not act
/// differently.
#if defined(__x86_64__)
constexpr auto kOtherAbis = std::to_array<std::uint32_t>({SCMP_ARCH_X86, SCMP_ARCH_X32});
#elif defined(__aarch64__)
constexpr auto kOtherAbis = std::to_array<std::uint32_t>({SCMP_ARCH_ARM});
#else
constexpr std::array<std::uint32_t, 0> kOtherAbis = {};
#endif

}  // namespace

Result<void> fake_root_calls() {
  SeccompFilter filter(SCMP_ACT_ALLOW);
  constexpr std::uint32_t kSucceeds = SCMP_ACT_ERRNO(0);
  for (const auto abi : kOtherAbis) filter.also_for(abi);
  for (const int call : kOwners) filter.add(kSucceeds, call);
  for (const auto kind : std::to_array<scmp_datum_t>({S_IFCHR, S_IFBLK})) {
    filter.add(kSucceeds, SCMP_SYS(mknod), {SCMP_A1(SCMP_CMP_MASKED_EQ, S_IFMT, kind)});
    filter.add(kSucceeds, SCMP_SYS(mknodat), {SCMP_A2(SCMP_CMP_MASKED_EQ, S_IFMT, kind)});
  }
  return filter.load("seccomp filter of --container-remap-root");
}

// --- seccomp profile ---

namespace {

/// Names of machines in profiles: `includes` uses those of Go.
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

/// Returns the value of this name in a table; empty if it has none.
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

/// Reads an action in libseccomp's numbering, with the error number beside it, else
/// `errno_default`.
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

/// Returns whether this kernel has the version MAJOR.MINOR or a later one.
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

/// The `includes` or `excludes` of an entry.
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
  /// Returns whether every condition of `includes` that is present holds.
  [[nodiscard]] bool admits(const SeccompSubject& subject) const {
    return (machines.empty() || has_machine()) &&
           (capabilities.empty() || subject.has_capabilities) &&
           (kernel.empty() || kernel_is_at_least(kernel));
  }
  /// Returns whether any condition of `excludes` holds.
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
  // With a mask, the first value is the mask. Without, the second value is ignored.
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

/// libseccomp takes one condition per argument. Further ones are alternatives, as in runc.
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

/// Returns the ABI of SCMP_ARCH_X86_64 and so on. Empty for machines that this product does not run
/// on.
std::optional<std::uint32_t> abi_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::uint32_t>, 5> kAbis{
      {{"SCMP_ARCH_X86_64", SCMP_ARCH_X86_64},
       {"SCMP_ARCH_X86", SCMP_ARCH_X86},
       {"SCMP_ARCH_X32", SCMP_ARCH_X32},
       {"SCMP_ARCH_AARCH64", SCMP_ARCH_AARCH64},
       {"SCMP_ARCH_ARM", SCMP_ARCH_ARM}}};
  return named(kAbis, name);
}

/// Reads the ABIs, beside this machine's own, whose calls the profile also decides. Calls of any
/// other ABI kill the process.
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
    SPC_TRY(entry.take("name", one));  // docker before 1.13
    SPC_TRY(entry.take("comment", comment));
    if (!one.empty()) calls.push_back(one);
    const auto action = SPC_TRY(take_action(entry, "action", "errnoRet", profile_.default_errno));
    entry.take_any("errno");  // podman's name for errnoRet, as a string
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
  object.take_any("flags");  // of the seccomp call: they affect speed and logging, but no decision
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
