#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// A *.sh of enroot's kind. It takes the place of the built-in hook of the same name, also when it is not run.
struct ShellHook {
  std::string name;  ///< the file's name without .sh
  std::string path;
  bool runs = true;  ///< false: not executable, empty, or no file: that turns off the name
};

/// The *.sh of /etc/enroot/hooks.d (where enroot_compat is on), /etc/spank-container/hooks.d and `users`/hooks.d (where it is
/// on), in this order and by name in each, without those that hooks_off names. Those of the site must be root's. `users` is
/// the user's directory of enroot's configuration; empty: none, or its hooks do not count (user_hooks).
Result<std::vector<ShellHook>> find_shell_hooks(const HookContext& context, const std::string& users);

}  // namespace spc
