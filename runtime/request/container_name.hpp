#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace spc {

// --- container name ---

/// The value of --container-name, NAME[:auto|create|exec|no_exec|replace|remove]. A name of the
/// form JOB.STEP (STEP may be `batch` or `interactive`) refers to that step's container while it
/// runs.
struct ContainerName {
  enum class Use { automatic, create, exec, no_exec, replace, remove };

  std::string text;
  Use use = Use::automatic;

  static Result<ContainerName> parse(std::string_view text);

  /// Returns a short hash, which the agent gets instead of the name. Hashes of different names of a
  /// user may be equal: the leader compares the name in the container's notes.
  [[nodiscard]] Digest key() const;
  /// Returns the key of the running step that the name refers to, if the name has that form.
  [[nodiscard]] std::optional<Digest> step_key() const;
};

// --- save path ---

/// Prefix of a save path, `oci-layer:FILE`: saves only the changes made by the tasks.
inline constexpr char kSaveLayer[] = "oci-layer:";
bool saves_layer(const std::string& path);

/// Refuses values that cannot be a file path, by their form alone.
Result<void> check_save_path(const std::string& path);

/// Returns the file that this node writes. In `path`, %j and %A are the job, %J job.step, %s the
/// step, %N the node, %n its number in the job, %u the user, %a the array task and %x the job's
/// name. A width before the letter pads numbers (%4n), as in Slurm's file names; %% is a percent
/// sign. Returns an empty optional if the name is the same on several nodes and another node writes
/// it. `job`: the task's environment.
std::optional<std::string> save_path_here(const std::string& path,
                                          const std::map<std::string, std::string>& job);

/// Returns Slurm's name of the step: `123.0`, `123.batch`.
std::string step_name(const std::map<std::string, std::string>& job);

}  // namespace spc
