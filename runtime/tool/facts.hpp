#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// Something about an image that matters to who wants to run it: `{"cuda", "12.4.99"}`.
struct Fact {
  std::string what;   ///< os, libc, cuda, cudnn, mpi, pmix, srun (what it must be told for this MPI), ucx, nccl, python
  std::string value;  ///< empty: there is none of it
};

/// What the files below `root`, a mounted image, tell: os-release, the package database, names and contents of libraries.
/// Nothing is executed. Always all facts, in the same order.
Result<std::vector<Fact>> facts_of(int root);

}  // namespace spc
