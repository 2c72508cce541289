#pragma once

#include <string_view>

#include "hooks/hook.hpp"

namespace spc {

/// Where a PMIx that was moved after its build finds its own files (openpmix,
/// src/mca/pinstalldirs/env): PMIX_PREFIX.
bool is_place_of_pmix(std::string_view name);
/// The same of an MPI: OPAL_PREFIX, I_MPI_ROOT, UCX_MODULE_DIR, PMIx's, which come from an
/// environment module or an image.
bool is_place_of_mpi(std::string_view name);

/// In `task`: places of the host's MPI that a module of the job has set, the image has not, and the
/// container does not have. The image's MPI would look for its components there, and MPI_Init would
/// fail.
void unset_places_outside(const HookContext& context, Edits& edits);

}  // namespace spc
