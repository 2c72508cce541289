#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"

namespace spank_container {

/// What one component of a heterogeneous step was given: see kComponentsVariable.
struct Component {
  int group = 0;  ///< the number that --het-group counts with
  std::vector<GivenOption> given;

  bool operator==(const Component&) const = default;
};

/// As the variable's value, and back. Options are written by name: another version of the plugin may have another table.
/// An unreadable text has no components.
std::string write_components(const std::vector<Component>& components);
std::vector<Component> read_components(std::string_view text);

/// Which groups the components on srun's command line have, in the order in which srun asks for their options. `words` is
/// the command line. Empty if that cannot be told for certain.
std::vector<int> groups_of_command_line(const std::vector<std::string>& words);

}  // namespace spank_container
