#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A container that `scontainer run` has made, for `scontainer exec`.
struct RunningContainer {
  std::string name;
  std::string image;
  pid_t pid = 0;         ///< of the command inside
  pid_t supervisor = 0;  ///< of scontainer itself
};

/// Our entry among the running containers; a lock on it says that it counts. It goes with this object; of a process that was
/// killed only a file stays that nobody has locked, and that the next one removes.
class RunningEntry {
 public:
  static Result<RunningEntry> add(const std::string& directory, const RunningContainer& container);
  RunningEntry(RunningEntry&& other) noexcept : path_(std::move(other.path_)), file_(std::move(other.file_)) {
    other.path_.clear();
  }
  RunningEntry& operator=(RunningEntry&&) = delete;
  ~RunningEntry();

 private:
  RunningEntry(std::string path, UniqueFd file) : path_(std::move(path)), file_(std::move(file)) {}
  std::string path_;
  UniqueFd file_;
};

/// Those of this machine.
Result<std::vector<RunningContainer>> running_containers(const std::string& directory);

}  // namespace spc
