#pragma once

#include <string_view>

#include "hooks/hook.hpp"

namespace spc {

/// Whether the image's loader finds a library of this name, by its /etc/ld.so.cache or as a file in a standard
/// directory or the image's LD_LIBRARY_PATH. In `create` and `task` only.
bool image_has_library(const HookContext& context, std::string_view soname);

/// The MPI in an image, detected by its libraries.
struct ImageMpi {
  bool open_mpi = false;  ///< libmpi.so.40 (Open MPI 3, 4, 5); .20 and .12 of old Open MPI cannot be told from MPICH
  bool mpich = false;     ///< libmpi.so.12, libmpich.so.12: MPICH and compatible ones
  bool pmix = false;      ///< libpmix.so.2
  bool pmi2 = false;      ///< libpmi2.so.0

  static ImageMpi of(const HookContext& context);
};

}  // namespace spc
