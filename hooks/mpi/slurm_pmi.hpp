#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// 50-slurm-pmi: what Slurm's PMIx, PMI and PALS need in the container. See README.md.
extern const Hook slurm_pmi_hook;

}  // namespace spc
