#pragma once

#include <string_view>
#include <vector>

namespace spc {

/// Pieces of text that stand in this order on one line; letters count as they are. There are no wildcards: looking for one
/// costs time in proportion to the line, whatever is in it.
using Pattern = std::vector<std::string_view>;

/// A failure that programs in containers report in words that do not say what is wrong: a row of the table.
struct Failure {
  const char* id;                 ///< stays the same, for scripts
  const char* says;               ///< what it is, in a few words
  std::vector<Pattern> patterns;  ///< any of them
  const char* cause;
  const char* cure;
  const char* look;                       ///< what tells which of several causes it is; may be empty
  std::vector<const char*> checks = {};   ///< those of preflight() that concern it, by name
  std::vector<const char*> told_by = {};  ///< ids: if one of these was seen, too, this one is its consequence
};

/// Which failures are known. The texts are those of the CUDA runtime and driver, NVML, NCCL, OpenMPI, PMIx, UCX, rdma-core,
/// PyTorch and the dynamic loader.
const std::vector<Failure>& gpu_failures();
const std::vector<Failure>& nccl_failures();
const std::vector<Failure>& mpi_failures();
/// All of them, in this order.
const std::vector<const Failure*>& known_failures();

}  // namespace spc
