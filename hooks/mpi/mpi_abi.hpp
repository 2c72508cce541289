#pragma once

#include "hooks/hook.hpp"

namespace spc {

/// 70-mpi-abi: with --container-mpi=host, or the site's mpi = "host", the node's MPI replaces the
/// image's, if the ABIs match and the image's C library is new enough. Its files are in a directory
/// of their own in the container, where the loader finds them before the image's. ABI.md has the
/// rules.
extern const Hook mpi_abi_hook;

}  // namespace spc
