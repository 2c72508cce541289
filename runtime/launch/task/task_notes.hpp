#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "hook_engine/step_hooks.hpp"
#include "launch/spec/container_spec.hpp"
#include "protocol/task.hpp"
#include "request/container_name.hpp"
#include "request/options.hpp"

namespace spc {

// --- start record ---

/// Sets SCONTAINER_IMAGE_NAME, as requested, and SCONTAINER_IMAGE_DIGEST.
void tell_image(const std::string& image, ContainerSpec& spec);

/// Sets SCONTAINER_CONTAINER_NAME to the --container-name.
void tell_name(const std::optional<ContainerName>& name, ContainerSpec& spec);

/// Sets the prompt of a shell on a terminal, which begins with the name of the container or image.
/// Debian's bash has its own prompt and shows `debian_chroot` before it.
void tell_prompt(ContainerSpec& spec);

/// Returns one line of key=value about a completed start, for the administrator's log; texts are
/// quoted. `scontainer metrics` reads it, and spank-container.conf(5) lists the keys, whose names
/// and order are stable. `pulled`: the image was pulled for this start.
std::string start_record(const std::string& image, const UserIdentity& user,
                         const ContainerSpec& spec, const TaskMessage& ready, bool pulled,
                         std::uint64_t microseconds, const std::map<std::string, std::string>& job);

/// Returns the line about a start that failed on this node.
std::string failure_record(const std::string& image, ErrorKind kind,
                           const std::map<std::string, std::string>& job);

/// Returns the line about a pull of this node, from the text `said` by `import`.
std::string pull_record(const std::string& image, std::string_view said,
                        const std::map<std::string, std::string>& job);

/// Returns the timing breakdown for the user, one line.
std::string timing_line(const TaskMessage& ready, std::uint64_t microseconds,
                        std::uint64_t entrypoint);

// --- task security ---

/// The restrictions of every task of a container, decided when it starts. Part of the notes.
struct TaskSecurity {
  std::string asked;  ///< LaunchRequest::seccomp of the step that started the container
  std::vector<std::string> programs;  ///< seccomp programs in the kernel's form; all of them apply
  /// Labels set by the site; empty: none, or the node does not have that security module.
  std::string apparmor, selinux;

  /// Returns records `key=value\0`; parsing ignores other keys.
  [[nodiscard]] std::string serialize() const;
  static TaskSecurity parse(std::string_view records);

  /// Checks a task that joins: it must request the restrictions that the container has.
  [[nodiscard]] Result<void> check(const LaunchRequest& request) const;
  /// Applies the restrictions in the task, without privilege, before a program of the image runs.
  [[nodiscard]] Result<void> apply() const;
};

// --- task entry ---

/// The work of a task inside its container. The leader decides it for all tasks of its node, and
/// leaves it for them in the notes, a memory file, before any task enters. The entrypoint's outcome
/// is appended once it is known.
struct TaskEntry {
  std::string step;    ///< JOB.STEP that wrote the notes: another step may have started a named
                       ///< container
  ContainerSpec spec;  ///< of it the notes have image, from and writable
  SitePolicy site;     ///< site policy of that step, including enroot's files
  HookEdits edits;
  TaskSecurity security;
  EnvironmentWishes wishes;  ///< requests of the step, including its --container-env-file
  std::string workdir;       ///< requested by the step, as read on the host; empty: the image's

  /// Returns JOB.STEP from this environment.
  static std::string step_of(const std::map<std::string, std::string>& job_environment);

  /// Writes the notes, once, before any other data in the file.
  Result<void> write(int file) const;
  static Result<TaskEntry> read(int file);
};

/// Returns all data after the notes so far; the entrypoint can tell whether it is complete.
Result<std::string> read_behind_notes(int file);

}  // namespace spc
