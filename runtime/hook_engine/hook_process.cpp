#include "hook_engine/hook_process.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "base/format.hpp"
#include "base/process/supervised.hpp"

namespace spc {
namespace {

constexpr int kItsOwnFile = 3;
static_assert(static_cast<int>(HookProcessEnd::Kind::printed_too_much) ==
              static_cast<int>(RunEnd::Kind::printed_too_much));

/// The kernel's own words for libcap's: no capability in any set, by raw calls as in every child.
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

}  // namespace

Result<HookProcessEnd> run_hook_process(const HookProcess& process,
                                        const std::function<void(std::string_view)>& tell) {
  using Kind = HookProcessEnd::Kind;
  Program program{.path = process.program,
                  .arguments = process.arguments,
                  .environment = process.environment,
                  .descriptors = {},
                  .group = Program::Group::session,
                  .signals = Program::Signals::defaults,
                  .umask = 022,
                  .directory = "/",
                  .prepare = give_up_capabilities};
  if (process.descriptor >= 0) {
    program.descriptors.push_back(
        {process.descriptor, kItsOwnFile});  // stays open: the interpreter of a script opens it
    program.executed = kItsOwnFile;
  }
  auto ran = run_supervised(std::move(program), process.input,
                            {.time = process.limit, .output = kMostHookOutput}, tell);
  if (!ran && ran.error().sys_errno() == 0) return std::move(ran).error();
  if (!ran) return HookProcessEnd{Kind::not_executed, ran.error().sys_errno(), {}};
  return HookProcessEnd{static_cast<Kind>(ran->kind), ran->number, std::move(ran->output)};
}

Error failure_of(const HookProcess& process, const HookProcessEnd& end,
                 std::string_view last_lines) {
  using Kind = HookProcessEnd::Kind;
  const std::string what = "run " + in_quotes(process.program);
  std::string why;
  switch (end.kind) {
    case Kind::exited: why = "exited with status " + std::to_string(end.number); break;
    case Kind::signalled: why = "was killed by signal " + std::to_string(end.number); break;
    case Kind::timed_out:
      why = formatted("did not finish within {} s", process.limit.count());
      break;
    case Kind::printed_too_much:
      why = formatted("printed more than {} MiB", kMostHookOutput >> 20);
      break;
    case Kind::not_executed:
      return Error::from_errno(end.number, what).hint("its interpreter must exist on the node");
  }
  if (!last_lines.empty()) why += "; last output: " + in_quotes(last_lines);
  return Error(ErrorKind::system, formatted("{}: {}", what, why));
}

}  // namespace spc
