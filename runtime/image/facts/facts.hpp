#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A relevant property of an image: `{"cuda", "12.4.99"}`.
struct Fact {
  std::string what;  ///< os, libc, cuda, cudnn, mpi, pmix, srun (the option this MPI needs), ucx,
                     ///< nccl, rocm, python, frameworks, driver (what this CUDA needs of the node)
  std::string value;  ///< empty: not present
};

/// What an image's files reveal.
struct FactSheet {
  std::vector<Fact> facts;  ///< always all of them, in the same order
  std::string labels;       ///< JSON, as Apptainer keeps labels in a file; empty: there is none
};

/// Whether a directory of this name holds nothing of interest, however large it is: documentation,
/// headers, tests, caches, what a Python package says of itself.
bool holds_no_facts(std::string_view directory);

/// The files of an image, however they are read. Links never lead out of it.
class SeenFiles {
 public:
  virtual ~SeenFiles() = default;
  /// Calls `visit` for everything in it, at least outside the directories that hold no facts;
  /// `path` is without leading '/'.
  virtual Result<void> walk(
      const std::function<void(const std::string& path, bool is_directory)>& visit) = 0;
  /// The text of a file, at most `limit` bytes; empty if there is none.
  virtual std::string text(const std::string& path, std::size_t limit) = 0;
};

/// From os-release, the package database, names and contents of libraries. Nothing is executed.
Result<FactSheet> facts_of(SeenFiles& files);
/// What is known before a pull: from the variables NAME=VALUE of an image's configuration.
std::vector<Fact> facts_of_variables(const std::vector<std::string>& variables);
/// All facts, in their order, of those that are known by name.
std::vector<Fact> facts_from(std::map<std::string, std::string> known);

/// The sheet as records `fact=NAME=VALUE\0` and `labels=JSON\0`, among the settings of an image
/// record (store/record.hpp).
std::string fact_records(const FactSheet& sheet);
/// The sheet among such settings; nothing if there is none. What wrote them had read the image:
/// values are cut and printable.
std::optional<FactSheet> facts_in(std::string_view records);

}  // namespace spc
