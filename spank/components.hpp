#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"

namespace spank_container {

/// Options of one component of a heterogeneous step: see kComponentsVariable.
struct Component {
  int group = 0;  ///< number as in --het-group
  std::vector<GivenOption> given;

  bool operator==(const Component&) const = default;
};

/// To and from the variable's value. Options are written by name: another version of the plugin may
/// have another table. An unreadable text has no components.
std::string write_components(const std::vector<Component>& components);
std::vector<Component> read_components(std::string_view text);

/// The groups of the components on srun's command line, in the order in which srun asks for their
/// options. `words` is the command line. Empty if ambiguous.
std::vector<int> groups_of_command_line(const std::vector<std::string>& words);

}  // namespace spank_container
