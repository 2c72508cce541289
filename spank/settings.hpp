#pragma once

#include <span>
#include <string>
#include <vector>

namespace spank_container {

/// The plugin's arguments in plugstack.conf: KEY=VALUE for keys of config.toml that they override,
/// and for pyxis's keys, so that its line works with another file name.
struct Settings {
  std::vector<std::string> site;  ///< KEY=VALUE with keys of config.toml
  bool in_allocator = true;       ///< sbatch and salloc have the options
  std::string refused;            ///< error in the line; no container starts then, other jobs run
};

Settings read_settings(std::span<const std::string> words);

}  // namespace spank_container
