#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A file in a hook directory.
struct HookFile {
  /// Order for equal stems.
  enum class Kind { program, shell, description };
  std::string
      stem;  ///< name without suffix: 98-nvidia for 98-nvidia, 98-nvidia.sh and 98-nvidia.json
  Kind kind{};
  std::string path;
  bool off = false;  ///< empty, not executable, or a link to /dev/null: only disables what it would
                     ///< replace
};

/// The files in a site's hook directory, by stem and kind. Names starting with a dot and backup
/// files
/// (~, .bak, .orig, .rpmsave, .dpkg-old and so on) are ignored. A missing directory has no hooks.
/// The directory, its files and all directories above must be owned by root (or `owner`) and
/// writable by the owner only.
Result<std::vector<HookFile>> read_hook_directory(const std::string& path, uid_t owner);

/// Who counts as root: the owner of /. In a user namespace without root, that is the overflow user.
uid_t owner_of_the_node();

}  // namespace spc
