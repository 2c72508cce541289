#pragma once

#include <string_view>

#include "hooks/hook.hpp"

namespace spc {

/// Whether the image's loader finds a library of this name, by its /etc/ld.so.cache or as a file in
/// a standard directory or the image's LD_LIBRARY_PATH. In `create` and `task` only.
bool image_has_library(const HookContext& context, std::string_view soname);

/// The MPI in an image, detected by its libraries.
struct ImageMpi {
  bool open_mpi = false;    ///< libmpi.so.40 (Open MPI 3, 4, 5); .20 and .12 of old Open MPI cannot
                            ///< be told from MPICH
  bool open_mpi_5 = false;  ///< libmpi.so.40 with libopen-pal.so.80: it has no PMI-1 and PMI-2
  bool mpich = false;       ///< libmpi.so.12, libmpich.so.12: MPICH and compatible ones
  bool pmix = false;        ///< libpmix.so.2
  bool pmi2 = false;        ///< libpmi2.so.0
  bool cray_pmi = false;    ///< libpmi.so.0 or libpmi2.so.0 of Cray, or libpals.so.0

  static ImageMpi of(const HookContext& context);
  /// Whether it is Intel's, which is found by a variable or in its usual place.
  static bool has_intel(const HookContext& context);
  /// Whether the image's Open MPI, of version 4 or older, was built with Slurm's PMI-2: as a
  /// component, mca_pmix_s2.so. Where its components lie is not known: as far as a libpmi2.so.0
  /// tells.
  [[gnu::cold]] static bool open_mpi_has_pmi2(const HookContext& context);
};

}  // namespace spc
