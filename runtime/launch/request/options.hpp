#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launch/request/launch_request.hpp"

namespace spc {

/// Where options are read: at submission nothing on the node is checked, in a container no file of
/// the host's is there.
enum class ReadAt { submission, node, container };

/// One option of a container. srun, sbatch, salloc and `scontainer run` register it, the task reads
/// it, and a site disables it, all from this row.
struct ContainerOption {
  enum class Kind {
    once,  ///< a text; two different values contradict each other
    file,  ///< the same, but not a directory
    list,  ///< may be repeated
    on,    ///< a switch
    off    ///< a switch that negates its opposite
  };

  const char* name;      ///< without dashes
  const char* argument;  ///< shown in --help; nullptr: none
  const char* help;
  const char* twin;  ///< SCONTAINER_<twin> and PYXIS_CONTAINER_<twin>; nullptr: none
  Kind kind;
  const char* opposite;  ///< the opposite switch; nullptr: none
  /// Applies the option. `value` is the text; for a switch "yes", or "no" if it has no
  /// opposite and its variable says so.
  Result<void> (*apply)(LaunchRequest& request, const std::string& value, ReadAt where);
  const char* run_help = nullptr;      ///< nullptr: not an option of `scontainer run`
  const char* run_argument = nullptr;  ///< if it differs from `argument`

  [[nodiscard]] bool is_switch() const { return kind == Kind::on || kind == Kind::off; }
};

/// All options, in the order of the help.
std::span<const ContainerOption> container_options();
/// nullptr: unknown option
const ContainerOption* find_option(std::string_view name);

/// The options, by name, that a site can disable with `features_off`.
std::vector<std::string_view> feature_names();

/// The given options and values, before they are interpreted.
class OptionTexts {
 public:
  using Variables = std::map<std::string, std::string>;
  /// What the names of their variables begin with; the first wins.
  static constexpr std::string_view kTwinPrefixes[] = {"SCONTAINER_", "PYXIS_CONTAINER_"};

  /// NAME=VALUE, or NAME. Adds to what was given before; a contradiction is an Error.
  Result<void> add(std::string_view text);
  Result<void> add(const ContainerOption& option, const std::string& value);
  /// The variables of options that are not given.
  Result<void> add_twins(const Variables& variables);

  /// Whether one of these was given; of a switch: as yes.
  [[nodiscard]] bool has(std::string_view name) const;
  /// As it was given last; empty: it was not.
  [[nodiscard]] std::string last(std::string_view name) const;

  /// Interprets them one by one. `name_of` gives the user's name of an option.
  Result<void> apply_to(LaunchRequest& request, ReadAt where,
                        std::string (*name_of)(const ContainerOption&)) const;
  /// The same for all options of a job, which must be consistent.
  [[nodiscard]] Result<LaunchRequest> parse(ReadAt where) const;

 private:
  Result<void> add_switch(const ContainerOption& option, const std::string& value);
  [[nodiscard]] bool is_given(const char* name) const;
  [[nodiscard]] std::vector<std::string> features() const;

  std::map<std::string_view, std::vector<std::string>> values_;  // by name of the option
  std::map<std::string_view, std::string> variables_;  // that the values are from, likewise
};

}  // namespace spc
