#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/process/supervised.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "launch/spec/container_spec.hpp"
#include "task/entering/arrival.hpp"

namespace spc {

// --- entrypoint process ---

/// Descriptors of the probe and of the file that it writes to.
inline constexpr int kProbeDescriptor = 20;
inline constexpr int kFoundDescriptor = 21;

/// Executes the program in its own session, with empty standard input and the passed descriptors
/// only, and passes every line of output to `tell`. Returns when the first process has exited.
/// Returns an Error with errno if it was not executed. `limit`: 0 is none. Then
///  - on success, processes that it has started live on, since entrypoints start servers. Their
///  output is discarded;
///  - on failure, at the time limit, or if the calling process is killed, all of them are killed.
/// A fork of the calling process, which must be single-threaded, supervises the program. On return,
/// the fork is no longer a child of the calling process.
Result<ProcessEnd> run_process(Program program, std::chrono::seconds limit, const TellLine& tell);

// --- entrypoint ---

/// Changes made by an image's entrypoint before it executed its arguments.
struct EntrypointChanges {
  std::map<std::string, std::string> set;
  std::set<std::string> unset;
  std::string workdir;  ///< empty: unchanged

  /// Computes the changes from the entrypoint's environment and the probe's output: the work
  /// directory and then the variables, each terminated by NUL. Ignores changes made by every shell
  /// (_, SHLVL, OLDPWD and PWD).
  static EntrypointChanges between(const Environment& given, std::string_view workdir,
                                   std::string_view found);
};

/// Applies `changes` to `spec`, except to variables kept or set by --container-env or the site, and
/// to a work directory set by the user.
void apply(const EntrypointChanges& changes, const LaunchRequest& request, ContainerSpec& spec);

/// The outcome as records `key=value\0`, for tasks that did not run the entrypoint themselves.
struct EntrypointOutcome {
  EntrypointChanges changes;
  std::string failure;              ///< empty: success
  std::vector<std::string> output;  ///< last lines of its output

  [[nodiscard]] std::string serialize() const;
  /// Parses records. Incomplete records are a failure.
  static EntrypointOutcome parse(std::string_view records);
};

/// The image's entrypoint in the start of a step. It is executed with a small probe
/// (container_helper) in place of the command. When the entrypoint executes its arguments, the
/// probe reports its environment and work directory, which become the tasks'. An entrypoint that
/// exits with 0 without doing so changes nothing.
///
/// In mode `node` the first task runs it for all tasks. The others get a memory file that is locked
/// until the entrypoint is done. The kernel releases the lock when the process that holds it ends.
class Entrypoint {
 public:
  /// Takes from `arrival` the probe and the first task's notes, a file for all tasks. It will
  /// contain the outcome and is locked until then.
  explicit Entrypoint(Arrival& arrival)
      : probe_(std::move(arrival.probe)),
        no_probe_(arrival.no_probe),
        notes_(std::move(arrival.own_notes)) {}

  /// In the container, in the work directory: runs the entrypoint, or waits for the first task, and
  /// changes `spec` accordingly. `notes`: the container's notes for all tasks.
  Result<void> run(const LaunchRequest& request, const SitePolicy& site, const UniqueFd& notes,
                   ContainerSpec& spec, Log& log);

 private:
  Result<EntrypointOutcome> outcome(const LaunchRequest& request, const UniqueFd& notes,
                                    ContainerSpec& spec, Log& log);
  Result<EntrypointOutcome> execute(const ContainerSpec& spec, Log* log) const;

  EntrypointMode mode_ = EntrypointMode::no;
  std::chrono::seconds limit_{0};
  UniqueFd probe_;
  int no_probe_;    ///< errno
  UniqueFd notes_;  ///< of the first task
};

}  // namespace spc
