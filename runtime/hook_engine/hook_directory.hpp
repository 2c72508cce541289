#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "hooks/hook.hpp"

namespace spc {

// --- hook conditions ---

/// Conditions for running a site hook: `when` of oci-hooks(5), and the job's environment. All must
/// hold.
struct HookConditions {
  std::optional<bool> always;
  std::map<std::string, std::string>
      annotations;  ///< for each pair, one annotation matches both; extended regular expressions
  std::vector<std::string> commands;  ///< one of them matches the first word of the task's command
  std::optional<bool> has_bind_mounts;
  std::map<std::string, std::string>
      environment;  ///< each of these job variables is set, and its value matches

  /// Returns whether there are any conditions.
  [[nodiscard]] bool empty() const;
  /// Checks the regular expressions; an error names the invalid one.
  [[nodiscard]] Result<void> check() const;
  [[nodiscard]] bool hold(const HookContext& context) const;
};

/// Returns the annotations of a container, as far as known at its start.
std::map<std::string, std::string> annotations_of(const HookContext& context);

// --- hook description ---

/// A file NAME.json in a hook directory, in the format of oci-hooks(5), version 1.0.0. With
/// `hook.path` it is an OCI runtime hook; without, it describes the program NAME beside it.
struct HookDescription {
  ProgramEdit program;  ///< without a path unless it is an OCI hook
  HookConditions when;
  std::vector<std::string> stages;
  bool optional = false;  ///< extension: a failure is a warning

  /// Parses a description strictly, like edits: unknown keys are refused by name.
  static Result<HookDescription> parse(std::string_view text);
  /// Does the same for a file that only root (or `owner`) can have written.
  static Result<HookDescription> read(const std::string& path, uid_t owner);
};

// --- hook directory ---

/// A file in a hook directory.
struct HookFile {
  /// Order for equal stems.
  enum class Kind { program, shell, description };
  std::string
      stem;  ///< name without suffix: 98-nvidia for 98-nvidia, 98-nvidia.sh and 98-nvidia.json
  Kind kind{};
  std::string path;
  bool off = false;  ///< empty, not executable, or a link to /dev/null: only disables the hook that
                     ///< it would replace
};

/// Returns the files in a site's hook directory, by stem and kind. Names starting with a dot and
/// backup files (~, .bak, .orig, .rpmsave, .dpkg-old and so on) are ignored. A missing directory
/// has no hooks. The directory, its files and all directories above must be owned by root (or
/// `owner`) and writable by the owner only.
Result<std::vector<HookFile>> read_hook_directory(const std::string& path, uid_t owner);

/// Returns the ID that counts as root: the owner of /. In a user namespace without root, that is
/// the overflow user.
uid_t owner_of_the_node();

// --- shell hook ---

/// An enroot shell hook, *.sh. It replaces the built-in hook of the same name, even if it does not
/// run.
struct ShellHook {
  std::string name;  ///< file name without .sh
  std::string path;
  bool runs = true;  ///< false: not executable, empty, or not a file; it only disables the name
};

/// Returns the *.sh in /etc/enroot/hooks.d (with enroot_compat), /etc/spank-container/hooks.d and
/// `users`/hooks.d (with enroot_compat), in this order and by name in each, without those in
/// hooks_off. Root must own the site's hooks. `users` is the user's enroot configuration directory;
/// empty: none, or user_hooks is off.
Result<std::vector<ShellHook>> find_shell_hooks(const HookContext& context,
                                                const std::string& users);

}  // namespace spc
