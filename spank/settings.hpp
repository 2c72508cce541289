#pragma once

#include <span>
#include <string>
#include <vector>

namespace spank_container {

/// What stands behind the plugin's name in plugstack.conf: KEY=VALUE, for keys of config.toml that the line overrides, and
/// for those of pyxis, so that its line works with another file name.
struct Settings {
  std::vector<std::string> site;  ///< KEY=VALUE in the words of config.toml
  bool in_allocator = true;       ///< sbatch and salloc have the options
  std::string refused;            ///< what is wrong with the line; no container starts then, other jobs run
};

Settings read_settings(std::span<const std::string> words);

/// What the administrator should know about a word of that line; empty: nothing.
std::string remark_about(const std::string& word);

}  // namespace spank_container
