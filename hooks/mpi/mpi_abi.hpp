#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// 70-mpi-abi: with --container-mpi=host, or mpi = "host" of the site, the node's MPI takes the place of the image's, if their
/// ABIs fit and the image has a C library that is new enough. Its files lie in a directory of their own inside, and the loader
/// finds them before the image's. What it takes and what it refuses: ABI.md beside this file.
extern const Hook mpi_abi_hook;

}  // namespace spc
