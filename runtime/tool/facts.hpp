#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc::tool {

/// A relevant property of an image: `{"cuda", "12.4.99"}`.
struct Fact {
  std::string what;   ///< os, libc, cuda, cudnn, mpi, pmix, srun (the option this MPI needs), ucx, nccl, python, frameworks,
                      ///< driver (what this CUDA needs of the node)
  std::string value;  ///< empty: not present
};

/// What the files below `root`, a mounted image, reveal: os-release, the package database, names and contents of libraries.
/// Nothing is executed. Always all facts, in the same order.
Result<std::vector<Fact>> facts_of(int root);

}  // namespace spc::tool
