#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

struct ConfigFile {
  std::string path;
  std::string text;
};

/// The configuration file `config.toml`, if there is one, and then the files `*.toml` in the
/// directory `config.d` beside it, in order of their names. Files and directories must be owned by
/// root (or `owner`) and writable by the owner only, including parents (base/trusted_file.hpp).
Result<std::vector<ConfigFile>> read_config_files(const std::string& path, uid_t owner);

}  // namespace spc
