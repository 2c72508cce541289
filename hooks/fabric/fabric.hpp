#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// The node's settings of NCCL and RCCL: /etc/nccl.conf, /etc/rccl.conf and the files they name, a
/// virtual topology; the image's settings come behind them. No variable is set.
extern const Hook nccl_hook;
/// The variables of SHARP's collectives, for jobs that request it: --network=sharp.
extern const Hook sharp_hook;
/// Fabric adapters: which are usable, the node's libraries for them, limits, and warnings.
extern const Hook fabric_hook;

/// Whether the site has not disabled the fabric.
bool fabric_is_on(const HookContext& context);

}  // namespace spc
