#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// 50-slurm-pytorch.
extern const Hook frameworks_hook;

}  // namespace spc
