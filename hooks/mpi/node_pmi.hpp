#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// Slurm's libpmi2.so.0 for Intel MPI and for an Open MPI 4 that was built with it: with --mpi=pmi2
/// they need one, which images rarely have. In `prepare` of a step with --mpi=pmi2.
[[gnu::cold]] void offer_pmi2(const HookContext& context, Edits& edits);
/// In `create`: keeps it for an image with such an MPI and no libpmi2.so.0, or says why not.
[[gnu::cold]] void choose_pmi2(const HookContext& context, Edits& edits);
/// In `task`: the variable by which Intel MPI finds it.
void name_pmi2(const HookContext& context, Edits& edits);

}  // namespace spc
