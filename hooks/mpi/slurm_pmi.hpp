#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// 50-slurm-pmi: what PMIx, PMI and PALS of Slurm need inside. What it knows of them: README.md beside this file.
extern const Hook slurm_pmi_hook;

}  // namespace spc
