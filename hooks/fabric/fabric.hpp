#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// The node's settings of NCCL: /etc/nccl.conf and what it names, a virtual topology. No variable is ever set.
extern const Hook nccl_hook;
/// The variables that SHARP's collectives need, for jobs that ask for it: --network=sharp.
extern const Hook sharp_hook;
/// Adapters of the fabric: which may be used, the node's libraries for them, limits, and whether all that will do.
extern const Hook fabric_hook;

/// Whether the site has left the fabric on.
bool fabric_is_on(const HookContext& context);

}  // namespace spc
