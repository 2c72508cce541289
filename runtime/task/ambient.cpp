#include "task/ambient.hpp"

#include <sys/capability.h>
#include <sys/prctl.h>

namespace spc {

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
            0);  // those that it does not have stay away
  }
  ::cap_free(set);
}

}  // namespace spc
