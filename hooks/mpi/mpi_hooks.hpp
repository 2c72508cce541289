#pragma once

#include <string_view>

#include "hooks/hook.hpp"

namespace spc {

// --- mpi places ---

/// Returns whether the variable gives a PMIx that was moved after its build the paths of its own
/// files (openpmix, src/mca/pinstalldirs/env): PMIX_PREFIX.
bool is_place_of_pmix(std::string_view name);
/// Returns the same for an MPI: OPAL_PREFIX, I_MPI_ROOT, UCX_MODULE_DIR and the variables of PMIx.
/// An environment module or an image sets them.
bool is_place_of_mpi(std::string_view name);

/// Unsets variables with paths of the host's MPI that an environment module of the job has set,
/// that the image has not set, and whose paths do not exist in the container. The image's MPI would
/// look for its components there, and MPI_Init would fail. Call it in `task`.
void unset_places_outside(const HookContext& context, Edits& edits);

// --- image mpi ---

/// Returns whether the image's loader finds a library of this name, by its /etc/ld.so.cache or as a
/// file in a standard directory or the image's LD_LIBRARY_PATH. In `create` and `task` only.
bool image_has_library(const HookContext& context, std::string_view soname);

/// The MPI in an image, detected by its libraries.
struct ImageMpi {
  /// libmpi.so.40 (Open MPI 3, 4, 5); .20 and .12 of old Open MPI cannot be distinguished from
  /// MPICH
  bool open_mpi = false;
  bool open_mpi_5 = false;  ///< libmpi.so.40 with libopen-pal.so.80: it has no PMI-1 and PMI-2
  bool mpich = false;       ///< libmpi.so.12, libmpich.so.12: MPICH and compatible ones
  bool pmix = false;        ///< libpmix.so.2
  bool pmi2 = false;        ///< libpmi2.so.0
  bool cray_pmi = false;    ///< libpmi.so.0 or libpmi2.so.0 of Cray, or libpals.so.0

  static ImageMpi of(const HookContext& context);
  /// Returns whether the image has Intel MPI, found by a variable or at its usual path.
  static bool has_intel(const HookContext& context);
  /// Returns whether the image's Open MPI, of version 4 or older, was built with Slurm's PMI-2, as
  /// a component (mca_pmix_s2.so). If the directory of its components is not known, returns whether
  /// the image has libpmi2.so.0.
  [[gnu::cold]] static bool open_mpi_has_pmi2(const HookContext& context);
};

// --- mpi abi ---

/// 70-mpi-abi: with --container-mpi=host, or the site's mpi = "host", the node's MPI replaces the
/// image's, if the ABIs match and the image's C library is new enough. Its files are in a separate
/// directory in the container, where the loader finds them before the image's. ABI.md has the
/// rules.
extern const Hook mpi_abi_hook;

// --- node pmi ---

/// Offers Slurm's libpmi2.so.0 for Intel MPI and for an Open MPI 4 that was built with it: with
/// --mpi=pmi2 these need the library, which images rarely have. Call it in `prepare` of a step with
/// --mpi=pmi2.
[[gnu::cold]] void offer_pmi2(const HookContext& context, Edits& edits);
/// Keeps the library for an image with such an MPI and no libpmi2.so.0, or reports why not. Call it
/// in `create`.
[[gnu::cold]] void choose_pmi2(const HookContext& context, Edits& edits);
/// Sets the variable by which Intel MPI finds the library. Call it in `task`.
void name_pmi2(const HookContext& context, Edits& edits);

// --- slurm pmi ---

/// 50-slurm-pmi: the requirements of Slurm's PMIx, PMI and PALS in the container. See README.md.
extern const Hook slurm_pmi_hook;

}  // namespace spc
