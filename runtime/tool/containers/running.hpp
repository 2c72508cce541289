#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
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

// --- sandboxes ---

// Records of `scontainer sandbox`: JSON files in a directory of the user on this machine. A record
// is valid while its process runs.
namespace sandboxes {

/// A process that cannot be confused with a later one of the same PID.
struct Process {
  pid_t pid = 0;
  std::uint64_t began = 0;  ///< clock ticks since the machine's start
};

/// Returns the fields of /proc/PID/stat after the name: state, parent, group, session and so on.
/// `proc`: the open /proc.
std::vector<std::string> stat_of(int proc, const std::string& pid);
/// Returns the process with this PID. Its own PID is 0 if there is none.
Process process_of(pid_t pid);
bool is_running(const Process& process);
/// Returns the slurmstepd above this process. Outside of a step its PID is 0.
Process step_daemon();
/// Returns a pidfd; empty if the process has ended.
UniqueFd open_process(const Process& process);
/// Returns SLURM_JOB_ID, empty outside of a job.
std::string job_of_caller();

/// Returns the directory of this user's records on this machine, and creates it.
Result<std::string> state_directory();
Result<std::string> record_text(const std::string& path);
/// Writes a record, which appears complete.
Result<void> write_record(const std::string& path, const std::string& text);
/// Creates and locks a file. The idle process of an image removes its lock.
Result<UniqueFd> lock_record(const std::string& path);

Json json_of(const Process& process);
Process process_in(const Json& record);
std::uint64_t number_in(const Json& record, const char* key);  ///< 0 if it is missing
std::string text_in(const Json& record, const char* key);      ///< empty if it is missing

/// Returns whether the text can name a sandbox or snapshot.
bool is_name(std::string_view name);
Error no_sandbox(const std::string& name);
/// Returns the record of a running sandbox.
Result<Json> find_sandbox(const std::string& state, const std::string& name);
/// Returns the records of the running sandboxes by name, and removes all other records.
Result<std::map<std::string, Json>> running_sandboxes(const std::string& state);

std::vector<std::string> texts_in(const Json& record, const char* key);

/// Copies the files of a writable layer, whiteouts and attributes of overlayfs included. Sockets
/// are left out.
Result<void> copy_directory(int from, int to);
/// Copy a file into a sandbox and out of it. `root`: its root directory. Links and special files in
/// it lead to nothing outside.
Result<void> copy_in(const std::string& source, int root, const std::string& target);
Result<void> copy_out(int root, const std::string& source, std::string target);
/// Removes a directory of this user with all its files.
void remove_files(const std::string& path);

}  // namespace sandboxes

}  // namespace spc::tool
