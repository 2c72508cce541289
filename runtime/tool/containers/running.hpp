#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::tool {

/// A container started by `scontainer run`, for `scontainer exec`.
struct RunningContainer {
  std::string name;
  std::string image;
  pid_t pid = 0;         ///< of the command in the container
  pid_t supervisor = 0;  ///< the scontainer process
};

/// This process's entry among the running containers, valid while it is locked. Removed with this
/// object. A killed process leaves an unlocked file, which the next process removes.
class RunningEntry {
 public:
  static Result<RunningEntry> add(const std::string& directory, const RunningContainer& container);
  RunningEntry(RunningEntry&& other) noexcept
      : path_(std::move(other.path_)), file_(std::move(other.file_)) {
    other.path_.clear();
  }
  RunningEntry& operator=(RunningEntry&&) = delete;
  ~RunningEntry();

 private:
  RunningEntry(std::string path, UniqueFd file) : path_(std::move(path)), file_(std::move(file)) {}
  std::string path_;
  UniqueFd file_;
};

/// Finds a container by its name, or by the PID of its command or of scontainer.
Result<RunningContainer> find_container(const std::string& directory, const std::string& text);
/// Returns the running containers of this machine.
Result<std::vector<RunningContainer>> running_containers(const std::string& directory);

}  // namespace spc::tool
