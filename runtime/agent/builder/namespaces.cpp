#include "agent/builder/steps.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/wait.h>

#include <cerrno>
#include <string>

#include "agent/node/privilege.hpp"
#include "agent/node/system_call.hpp"
#include "protocol/task.hpp"

namespace spc::agent {

Result<std::vector<UniqueFd>> new_namespaces(int proc, int owner, int flags,
                                             const std::vector<const char*>& names) {
  std::vector<UniqueFd> made;
  int failed = 0;
  const pid_t child = SPC_TRY(run_aside(0, [&] {  // there is no way back out of a user namespace
    const bool joined = owner < 0 || ::setns(owner, CLONE_NEWUSER) == 0;
    // Files that come with a namespace (of message queues) belong to who makes it: its root, or
    // nobody could write to them.
    ::setfsgid(0);
    ::setfsuid(0);
    bool done = joined && ::unshare(flags) == 0;
    for (const char* name : names) {
      if (done)
        made.emplace_back(
            ::openat(proc, (std::string("self/ns/") + name).c_str(), O_RDONLY | O_CLOEXEC));
      done = done && made.back();
    }
    if (!done) failed = errno;
  }));
  ::waitpid(child, nullptr, 0);
  if (failed != 0) return Error::from_errno(failed, "set up the container's namespaces");
  return made;
}

Result<std::vector<UniqueFd>> enter_own_namespaces(std::uint32_t bits, int proc, int user) {
  int flags = 0;
  std::vector<const char*> names;
  for (const auto& [bit, flag, name] : kNamespaceKinds) {
    if ((bits & bit & (own_net | own_ipc | own_uts)) == 0) continue;
    flags |= flag;
    names.push_back(name);
  }
  std::vector<UniqueFd> entered;
  if (flags != 0) entered = SPC_TRY(new_namespaces(proc, user, flags, names));
  for (const UniqueFd& space : entered)
    SPC_TRY(check(::setns(space.get(), 0), "enter the container's namespaces"));
  return entered;
}

}  // namespace spc::agent
