#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A file in a directory of hooks.
struct HookFile {
  /// In this order where stems are equal.
  enum class Kind { program, shell, description };
  std::string stem;  ///< its name without the last ending: 98-nvidia of 98-nvidia, 98-nvidia.sh and 98-nvidia.json
  Kind kind{};
  std::string path;
  bool off = false;  ///< empty, nobody may execute it, or a link to /dev/null: it only turns off what it would replace
};

/// The files of a directory in which a site has its hooks, by stem and kind. Names that begin with a dot or end like those of
/// backups (~, .bak, .orig, .rpmsave, .dpkg-old and such) are no hooks. A directory that is not there has none. Directory,
/// files and all directories above must belong to root (or `owner`), and nobody else may be able to write them.
Result<std::vector<HookFile>> read_hook_directory(const std::string& path, uid_t owner);

/// Who counts as root: the owner of /. In a user namespace in which root does not exist that is who stands for everybody else.
uid_t owner_of_the_node();

}  // namespace spc
