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
  /// os, libc, cuda, cudnn, mpi, pmix, srun (the option for this MPI), ucx, nccl, rocm, python,
  /// frameworks, driver (the node's driver for this CUDA)
  std::string what;
  std::string value;  ///< empty: not present
};

/// Facts found in an image's files.
struct FactSheet {
  std::vector<Fact> facts;  ///< always all of them, in the same order
  std::string labels;       ///< JSON, as in Apptainer's label file; empty: none
};

/// Returns whether a directory of this name never holds facts, even if it is large: documentation,
/// headers, tests, caches, metadata of Python packages.
bool holds_no_facts(std::string_view directory);

/// Interface to the files of an image. Links never lead out of it.
class SeenFiles {
 public:
  virtual ~SeenFiles() = default;
  /// Calls `visit` for every entry, at least outside the directories that hold no facts. `path` has
  /// no leading '/'.
  virtual Result<void> walk(
      const std::function<void(const std::string& path, bool is_directory)>& visit) = 0;
  /// Returns the text of a file, at most `limit` bytes. Empty if it does not exist.
  virtual std::string text(const std::string& path, std::size_t limit) = 0;
};

/// Collects facts from os-release, the package database, and names and contents of libraries.
/// Executes no program.
Result<FactSheet> facts_of(SeenFiles& files);
/// Returns the facts known before a pull: from the variables NAME=VALUE of an image's
/// configuration.
std::vector<Fact> facts_of_variables(const std::vector<std::string>& variables);
/// Returns all facts in their order, with the values of the known ones.
std::vector<Fact> facts_from(std::map<std::string, std::string> known);

/// Returns the sheet as records `fact=NAME=VALUE\0` and `labels=JSON\0`, which are settings of an
/// image record (ImageRecord).
std::string fact_records(const FactSheet& sheet);
/// Parses the sheet from such settings. Empty if there is none. The writer has read an untrusted
/// image, so values are truncated and made printable.
std::optional<FactSheet> facts_in(std::string_view records);

}  // namespace spc
