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

namespace spc {

/// What an image's entrypoint has changed before it executed its arguments.
struct EntrypointChanges {
  std::map<std::string, std::string> set;
  std::set<std::string> unset;
  std::string workdir;  ///< empty: it has stayed where it was

  /// From what it was given and what the probe has found: the work directory and then the variables, each ended by NUL.
  /// What every shell changes (_, SHLVL, OLDPWD and PWD) does not count.
  static EntrypointChanges between(const Environment& given, std::string_view workdir, std::string_view found);
};

/// `changes` in `spec`; what --container-env or the site keeps or sets stays, and a work directory that the user has chosen.
void apply(const EntrypointChanges& changes, const LaunchRequest& request, ContainerSpec& spec);

/// How it went, for the tasks that have not run it themselves: records `key=value\0`.
struct EntrypointOutcome {
  EntrypointChanges changes;
  std::string failure;              ///< empty: it went well
  std::vector<std::string> output;  ///< the last lines of it

  [[nodiscard]] std::string serialize() const;
  /// What does not reach its end is a failure.
  static EntrypointOutcome parse(std::string_view records);
};

/// The image's entrypoint in a step's start. It is executed with a small program of ours (container/probe) in place of the
/// user's command; when it executes its arguments, as entrypoints do, that program tells its environment and work directory,
/// which become the tasks'. One that ends with 0 without doing so changes nothing.
///
/// In mode `node` the leading task runs it, for all: they are given a memory file that is locked until it has ended. The
/// lock goes with the process that holds it.
class Entrypoint {
 public:
  /// Outside, before anything is entered; opens what will be needed inside.
  static Result<Entrypoint> prepare(const LaunchRequest& request, const Site& site);

  /// For the leading task: its notes for the others, where the outcome will stand. They are locked until then.
  Result<void> write_down_in(UniqueFd notes);
  /// Inside, in the work directory: runs the entrypoint, or waits for the task that does, and changes `spec` accordingly.
  /// `notes`: what the leading task has sent, if this is another one.
  Result<void> run(const LaunchRequest& request, const UniqueFd& notes, ContainerSpec& spec, Log& log);

 private:
  Result<EntrypointOutcome> execute(const ContainerSpec& spec, Log* log) const;

  EntrypointMode mode_ = EntrypointMode::no;
  std::chrono::seconds limit_{0};
  UniqueFd probe_;
  UniqueFd notes_;  ///< of the leading task, in mode node
};

}  // namespace spc
