#include "task/enter.hpp"

#include <sched.h>
#include <sys/capability.h>
#include <sys/prctl.h>

#include <cerrno>
#include <initializer_list>

#include "task/loopback.hpp"
#include "task/stand_in.hpp"

namespace spc {
namespace {

/// Raises these out of the permitted set; with none, gives up the permitted set too.
Result<void> set_capabilities(std::initializer_list<cap_value_t> wanted) {
  cap_t set = wanted.size() == 0 ? ::cap_init() : ::cap_get_proc();
  if (set == nullptr) return Error::from_errno(errno, "read the capabilities");
  ::cap_clear_flag(set, CAP_EFFECTIVE);
  ::cap_clear_flag(set, CAP_INHERITABLE);
  for (const cap_value_t capability : wanted) ::cap_set_flag(set, CAP_EFFECTIVE, 1, &capability, CAP_SET);
  const int failed = ::cap_set_proc(set) != 0 ? errno : 0;
  ::cap_free(set);
  if (failed != 0) return Error::from_errno(failed, "change the capabilities");
  return {};
}

/// There is no way any more to get a capability that the process does not have.
Result<void> forgo_privilege() {
  ::prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Error::from_errno(errno, "set no_new_privs");
  return {};
}

}  // namespace

void keep_privilege_to_enter() { ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0); }

Result<void> stay_outside() {
  SPC_TRY(set_capabilities({}));
  ::prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
  return {};
}

Result<void> give_up_privilege() {
  SPC_TRY(stay_outside());
  return forgo_privilege();
}

Result<void> enter_container(const ContainerNamespaces& namespaces) {
  const UniqueFd& user = namespaces.own[0];
  const bool network = namespaces.has(own_net);
  auto raised = network ? set_capabilities({CAP_SYS_ADMIN, CAP_SYS_CHROOT, CAP_NET_ADMIN})
                        : set_capabilities({CAP_SYS_ADMIN, CAP_SYS_CHROOT});
  bool entered = raised.has_value();
  for (std::size_t i = 1; entered && i < namespaces.own.size(); ++i) {
    entered = !namespaces.own[i] || ::setns(namespaces.own[i].get(), kNamespaceKinds[i].flag) == 0;
  }
  entered = entered && (!network || start_loopback());
  // Entering the user namespace leaves no capability in any other, and the mount namespace belongs to it.
  entered = entered && (!user || ::setns(user.get(), CLONE_NEWUSER) == 0);
  entered = entered && ::setns(namespaces.mounts.get(), CLONE_NEWNS) == 0;
  const int failed = entered ? 0 : errno;
  SPC_TRY(entered && user ? forgo_privilege() : give_up_privilege());
  if (!raised) return std::move(raised).error().during("enter the container");
  if (failed != 0) return Error::from_errno(failed, "enter the container");
  return namespaces.has(own_pid) ? leave_stand_in() : Result<void>();
}

}  // namespace spc
