#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "hooks/hook.hpp"

namespace spc {

/// An enroot shell hook, *.sh. It replaces the built-in hook of the same name, even if it does not
/// run.
struct ShellHook {
  std::string name;  ///< file name without .sh
  std::string path;
  bool runs = true;  ///< false: not executable, empty, or not a file: disables the name
};

/// The *.sh in /etc/enroot/hooks.d (with enroot_compat), /etc/spank-container/hooks.d and
/// `users`/hooks.d (with enroot_compat), in this order and by name in each, without those in
/// hooks_off. The site's must be owned by root. `users` is the user's enroot configuration
/// directory; empty: none, or user_hooks is off.
Result<std::vector<ShellHook>> find_shell_hooks(const HookContext& context,
                                                const std::string& users);

}  // namespace spc
