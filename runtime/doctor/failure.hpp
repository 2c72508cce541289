#pragma once

#include <string_view>
#include <vector>

namespace spc {

/// Strings that must occur in this order on one line, case-sensitive. No wildcards: the cost of a
/// search is proportional to the line, whatever it contains.
using Pattern = std::vector<std::string_view>;

/// A failure that programs report in words that do not name the cause: a row of the table.
struct Failure {
  const char* id;                 ///< stable, for scripts
  const char* says;               ///< summary
  std::vector<Pattern> patterns;  ///< any of them
  const char* cause;
  const char* cure;
  const char* look;                      ///< how to tell several causes apart; may be empty
  std::vector<const char*> checks = {};  ///< related checks of preflight(), by name
  std::vector<const char*> told_by =
      {};  ///< ids: if one of these was found, this is its consequence
};

/// Known failures. The texts are those of the CUDA runtime and driver, NVML, NCCL, Open MPI, PMIx,
/// UCX, rdma-core, libfabric, Intel MPI, Cray MPICH, PSM2, PyTorch and the dynamic loader.
const std::vector<Failure>& gpu_failures();
const std::vector<Failure>& nccl_failures();
const std::vector<Failure>& mpi_failures();
const std::vector<Failure>& fabric_failures();
/// All of them, in this order.
const std::vector<const Failure*>& known_failures();

}  // namespace spc
