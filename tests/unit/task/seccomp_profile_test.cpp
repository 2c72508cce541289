// Seccomp profiles in the form of podman and docker: their effect in a child that has loaded them.

#include "task/security.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

/// Returns the result of `call` under the profile: the error number, 0 for success, -1 if a signal
/// ended it.
int under(const std::string& profile, const std::function<long()>& call, bool capable = false) {
  const auto program = compile_seccomp_profile(profile, {.has_capabilities = capable});
  INFO((program ? "" : program.error().what()));
  REQUIRE(program);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!load_seccomp_program(*program)) ::_exit(99);
    errno = 0;
    ::_exit(call() < 0 ? errno : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string profile_of(const std::string& entries,
                       const std::string& head = R"("defaultAction": "SCMP_ACT_ALLOW")") {
  return "{" + head + R"(, "syscalls": [)" + entries + "]}";
}

std::string why_not(const std::string& profile) {
  const auto program = compile_seccomp_profile(profile, {});
  return program ? "" : program.error().what();
}

long group_of(pid_t of) { return ::syscall(SYS_getpgid, of); }
long group() { return group_of(0); }

constexpr char kDenied[] =
    R"({"names": ["getpgid", "no_such_call"], "action": "SCMP_ACT_ERRNO", "errnoRet": 61})";

}  // namespace

TEST_CASE("seccomp_entry_applies_to_its_calls_only") {
  CHECK(under(profile_of(kDenied), group) == 61);
  CHECK(under(profile_of(kDenied), [] { return ::syscall(SYS_getppid); }) == 0);
  CHECK(under(profile_of(R"({"names": ["getpgid"], "action": "SCMP_ACT_ERRNO"})"), group) == EPERM);
  CHECK(under(profile_of(R"({"name": "getpgid", "action": "SCMP_ACT_ERRNO"})"), group) == EPERM);
  CHECK(under(profile_of(R"({"names": ["getpgid"], "action": "SCMP_ACT_KILL_PROCESS"})"), group) ==
        -1);
  CHECK(under(profile_of(R"({"names": ["getpgid"], "action": "SCMP_ACT_LOG"})"), group) == 0);
}

TEST_CASE("seccomp_unlisted_call_gets_default_errno") {
  // Includes the calls of sanitizers at process exit.
  const std::string allowed =
      R"({"names": ["exit_group", "futex", "gettid", "getpid", "madvise", "mmap", "munmap",
    "mprotect", "prctl", "rt_sigaction", "rt_sigprocmask", "sched_yield", "sigaltstack", "write"],
    "action": "SCMP_ACT_ALLOW"})";
  CHECK(
      under(
          profile_of(
              allowed,
              R"("defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, )"
              R"("defaultErrno": "ENOSYS")"),
          group) == ENOSYS);
  CHECK(under(profile_of(allowed, R"("defaultAction": "SCMP_ACT_ERRNO")"), group) == EPERM);
}

TEST_CASE("seccomp_conditions_combine_within_and_across_arguments") {
  const auto entry = [](const std::string& conditions) {
    return profile_of(
        R"({"names": ["getpgid"], "action": "SCMP_ACT_ERRNO", "errnoRet": 61, "args": [)" +
        conditions + "]}");
  };
  const std::string zero = R"({"index": 0, "value": 0, "op": "SCMP_CMP_EQ"})";
  const std::string seven =
      R"({"index": 0, "value": 4294967295, "valueTwo": 2147483647, "op": "SCMP_CMP_MASKED_EQ"})";
  const std::string other = R"({"index": 1, "value": 5, "op": "SCMP_CMP_EQ"})";
  const auto most = [] { return group_of(2147483647); };
  CHECK(under(entry(zero), group) == 61);
  CHECK(under(entry(zero), most) == ESRCH);
  CHECK(under(entry(zero + "," + seven), most) == 61);
  CHECK(under(entry(zero + "," + seven), group) == 61);
  CHECK(under(entry(zero + "," + other), group) == 0);
  CHECK(under(entry(zero + "," + other), [] { return ::syscall(SYS_getpgid, 0, 5); }) == 61);
}

TEST_CASE("seccomp_entries_are_filtered_by_capability_and_kernel") {
  const auto with = [](const std::string& filter) {
    return profile_of(R"({"names": ["getpgid"], "action": "SCMP_ACT_ERRNO", "errnoRet": 61, )" +
                      filter + "}");
  };
#if defined(__x86_64__)
  const std::string here = "amd64";
  const std::string elsewhere = "arm64";
#else
  const std::string here = "arm64";
  const std::string elsewhere = "amd64";
#endif
  CHECK(under(with(R"("includes": {"caps": ["CAP_SYS_ADMIN"]})"), group) == 0);
  CHECK(under(with(R"("includes": {"caps": ["CAP_SYS_ADMIN"]})"), group, true) == 61);
  CHECK(under(with(R"("excludes": {"caps": ["CAP_SYS_ADMIN"]})"), group) == 61);
  CHECK(under(with(R"("excludes": {"caps": ["CAP_SYS_ADMIN"]})"), group, true) == 0);
  CHECK(under(with(R"("includes": {"arches": [")" + here + R"("]})"), group) == 61);
  CHECK(under(with(R"("includes": {"arches": [")" + elsewhere + R"("]})"), group) == 0);
  CHECK(under(with(R"("excludes": {"arches": [")" + here + R"("]})"), group) == 0);
  CHECK(under(with(R"("includes": {"minKernel": "4.8"})"), group) == 61);
  CHECK(under(with(R"("includes": {"minKernel": "99.0"})"), group) == 0);
  CHECK(under(with(R"("excludes": {"minKernel": "4.8"})"), group) == 0);
}

TEST_CASE("seccomp_architectures_have_podman_and_oci_names") {
  const std::string head = R"("defaultAction": "SCMP_ACT_ALLOW", "flags": [], )";
  CHECK(
      under(
          profile_of(
              kDenied,
              head +
                  R"("architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X86", )"
                  R"("SCMP_ARCH_S390X"])"),
          group) == 61);
  CHECK(under(profile_of(kDenied, head + R"("archMap": [
    {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
    {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
    {"architecture": "SCMP_ARCH_MIPS64", "subArchitectures": ["SCMP_ARCH_MIPS"]}])"),
              group) == 61);
}

TEST_CASE("seccomp_unsupported_profile_is_refused_with_path") {
  CHECK(why_not("[]") == "is not a JSON object");
  CHECK(why_not("{}") == "defaultAction: \"\" is not supported");
  CHECK(why_not(profile_of("", R"("defaultAction": "SCMP_ACT_NOTIFY")")) ==
        "defaultAction: \"SCMP_ACT_NOTIFY\" is not supported");
  CHECK(why_not(profile_of(R"({"names": ["read"], "action": "SCMP_ACT_TRACE"})")) ==
        "syscalls[0].action: \"SCMP_ACT_TRACE\" is not supported");
  CHECK(
      why_not(profile_of(R"({"names": ["read"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5000})")) ==
      "syscalls[0].errnoRet: is not an error number");
  CHECK(
      why_not(profile_of(
          R"({"names": ["read"], "action": "SCMP_ACT_LOG", "args": [{"index": 9, )"
          R"("op": "SCMP_CMP_EQ"}]})")) ==
      "syscalls[0].args[0].index: is not 0 to 5");
  CHECK(why_not(profile_of(R"({"names": ["read"], "action": "SCMP_ACT_LOG", "include": {}})")) ==
        "syscalls[0].include: is unknown");
}
