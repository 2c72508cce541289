#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "launch/spec/container_spec.hpp"
#include "task/entering/arrival.hpp"

namespace spc {

/// What an image's entrypoint changed before it executed its arguments.
struct EntrypointChanges {
  std::map<std::string, std::string> set;
  std::set<std::string> unset;
  std::string workdir;  ///< empty: unchanged

  /// From its environment and the probe's output: the work directory and then the variables, each
  /// terminated by NUL. Changes made by every shell (_, SHLVL, OLDPWD and PWD) are ignored.
  static EntrypointChanges between(const Environment& given, std::string_view workdir,
                                   std::string_view found);
};

/// Applies `changes` to `spec`, except to variables kept or set by --container-env or the site, and
/// to a work directory set by the user.
void apply(const EntrypointChanges& changes, const LaunchRequest& request, ContainerSpec& spec);

/// The outcome, for tasks that did not run it themselves: records `key=value\0`.
struct EntrypointOutcome {
  EntrypointChanges changes;
  std::string failure;              ///< empty: success
  std::vector<std::string> output;  ///< its last lines

  [[nodiscard]] std::string serialize() const;
  /// Incomplete records are a failure.
  static EntrypointOutcome parse(std::string_view records);
};

/// The image's entrypoint in the start of a step. It is executed with a small probe
/// (container_helper) in place of the command; when it executes its arguments, as entrypoints do,
/// the probe reports its environment and work directory, which become the tasks'. One that exits
/// with 0 without doing so changes nothing.
///
/// In mode `node` the first task runs it for all: they get a memory file that is locked until it is
/// done. The kernel releases the lock with the process that holds it.
class Entrypoint {
 public:
  /// `arrival`: its probe, and the notes of the first task, for all of them, which will contain the
  /// outcome and are locked until then.
  explicit Entrypoint(Arrival& arrival)
      : probe_(std::move(arrival.probe)),
        no_probe_(arrival.no_probe),
        notes_(std::move(arrival.own_notes)) {}

  /// In the container, in the work directory: runs the entrypoint, or waits for the first task, and
  /// changes `spec` accordingly. `notes`: the container's, for all tasks.
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
