#include "hooks/cdi/cdi.hpp"
#include "hooks/frameworks/frameworks.hpp"
#include "hooks/hook.hpp"

namespace spc {

const std::vector<const Hook*>& builtin_hooks() {
  static const std::vector<const Hook*> hooks{
      &frameworks_hook,
      &cdi_hook,
  };
  return hooks;
}

}  // namespace spc
