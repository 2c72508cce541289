#include "container/task/enter.hpp"

#include <sched.h>
#include <sys/capability.h>
#include <sys/prctl.h>

#include <cerrno>
#include <initializer_list>

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

}  // namespace

void keep_privilege_to_enter() { ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0); }

Result<void> stay_outside() {
  SPC_TRY(set_capabilities({}));
  ::prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
  return {};
}

Result<void> give_up_privilege() {
  SPC_TRY(stay_outside());
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Error::from_errno(errno, "set no_new_privs");
  return {};
}

Result<void> enter_container(int mount_namespace) {
  auto raised = set_capabilities({CAP_SYS_ADMIN, CAP_SYS_CHROOT});
  const int failed = raised && ::setns(mount_namespace, CLONE_NEWNS) != 0 ? errno : 0;

  SPC_TRY(give_up_privilege());
  if (!raised) return std::move(raised).error().during("enter the container");
  if (failed != 0) return Error::from_errno(failed, "enter the container");
  return {};
}

}  // namespace spc
