#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// Slurm's libpmi2.so.0 for Intel MPI: with --mpi=pmi2 it needs one (I_MPI_PMI_LIBRARY), which images do not have. In `prepare`
/// of a step with --mpi=pmi2.
[[gnu::cold]] void offer_pmi2(const HookContext& context, Edits& edits);
/// In `create`: keeps it for an image with Intel MPI that has none, or says why not.
[[gnu::cold]] void choose_pmi2(const HookContext& context, Edits& edits);
/// In `task`: the variable, where the library is.
void name_pmi2(const HookContext& context, Edits& edits);

}  // namespace spc
