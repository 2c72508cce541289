#include "hooks/hook.hpp"

#include "hooks/cdi/cdi.hpp"
#include "hooks/fabric/fabric.hpp"
#include "hooks/frameworks/frameworks.hpp"
#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/mpi/mpi_hooks.hpp"
#include "hooks/node/node.hpp"

namespace spc {

const std::vector<const Hook*>& builtin_hooks() {
  static const std::vector<const Hook*> hooks{
      &aptfix_hook,            //
      &localtime_hook,         //
      &shadow_hook,            //
      &python_user_base_hook,  //
      &nccl_hook,              //
      &sharp_hook,             //
      &slurm_pmi_hook,         //
      &frameworks_hook,        //
      &ssh_hook,               //
      &cdi_hook,               //
      &mpi_abi_hook,           //
      &gpu_hook,               //
      &nvidia_hook,            //
      &amd_hook,               //
      &intel_hook,             //
      &fabric_hook,            //
  };
  return hooks;
}

}  // namespace spc
