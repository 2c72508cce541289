#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

// --- node ---

/// Hooks for properties of the node that a container gets, with the names of enroot's hooks.
extern const Hook localtime_hook;
extern const Hook aptfix_hook;
/// Reports the entries of passwd and group for the user, and disables them if the hook is off. The
/// root file system set-up writes the entries, because it knows the user.
extern const Hook shadow_hook;
/// Mounts the node's ssh server for --container-ssh: sshd, ssh-keygen, their libraries and the
/// program interpreter, `ld.so`, in /run/spank-container/ssh. The hook starts nothing.
extern const Hook ssh_hook;

// --- node files ---

/// Files of the node below a root (host_root: empty except in tests). Missing or unreadable files
/// are empty, so a partly installed driver is described as far as it exists.
class NodeFiles {
 public:
  explicit NodeFiles(std::string root) : root_(std::move(root)) {}

  [[nodiscard]] bool exists(const std::string& path) const;
  /// Returns whether the file, or a link's target, is a regular file.
  [[nodiscard]] bool is_regular(const std::string& path) const;
  /// Returns at most 64 KiB of the file.
  [[nodiscard]] std::string text(const std::string& path) const;
  [[nodiscard]] std::string link(const std::string& path) const;
  /// Returns the names in a directory with this prefix, in natural order, including links.
  [[nodiscard]] std::vector<std::string> names(const std::string& directory,
                                               std::string_view prefix = "") const;
  /// Returns the names for which `wanted` returns true. For a directory of thousands, sorting all
  /// names would take longer than reading it.
  [[nodiscard]] std::vector<std::string> names_if(
      const std::string& directory, const std::function<bool(std::string_view)>& wanted) const;
  [[nodiscard]] std::string on_disk(const std::string& path) const { return root_ + path; }

 private:
  std::string root_;
};

/// Returns the value of the first "Name:   value" line with this name; empty if there is none.
std::string field_of(std::string_view text, std::string_view name);

}  // namespace spc
