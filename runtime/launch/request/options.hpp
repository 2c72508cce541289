#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launch/request/launch_request.hpp"

namespace spc {

/// Where options are read: at submission nothing of the node is looked at.
enum class ReadAt { submission, node };

/// One option of a container. srun, sbatch, salloc and `scontainer run` register it, the task reads
/// it, and a site turns it off, all by this row.
struct ContainerOption {
  enum class Kind {
    once,  ///< a text; two different ones contradict each other
    file,  ///< the same, and no directory
    list,  ///< may be given several times
    on,    ///< a switch
    off    ///< a switch that negates its opposite
  };

  const char* name;      ///< without its dashes
  const char* argument;  ///< shown in --help; nullptr: it takes none
  const char* help;
  const char* twin;  ///< SCONTAINER_<twin> and PYXIS_CONTAINER_<twin>; nullptr: it has none
  Kind kind;
  const char* opposite;  ///< the name of the switch that says the contrary; nullptr: there is none
  /// Sets what the option means. `value` is the text; of a switch "yes", or "no" where it has no
  /// opposite and its variable says so.
  Result<void> (*apply)(LaunchRequest& request, const std::string& value, ReadAt where);
  const char* run_help = nullptr;      ///< nullptr: `scontainer run` does not have it
  const char* run_argument = nullptr;  ///< where it differs from `argument`

  [[nodiscard]] bool is_switch() const { return kind == Kind::on || kind == Kind::off; }
};

/// All options, in the order of the help.
std::span<const ContainerOption> container_options();
/// nullptr: there is none of this name.
const ContainerOption* find_option(std::string_view name);

/// The options, by name, that a site can turn off with `features_off`.
std::vector<std::string_view> feature_names();

/// What was given, by option, before its meaning is looked at.
class OptionTexts {
 public:
  using Variables = std::map<std::string, std::string>;

  /// NAME=VALUE, or NAME. What was given before stays; a contradiction is an Error.
  Result<void> add(std::string_view text);
  Result<void> add(const ContainerOption& option, const std::string& value);
  /// The variables of the options that are not given.
  Result<void> add_twins(const Variables& variables);

  /// Whether one of these was given; of a switch: as yes.
  [[nodiscard]] bool has(std::string_view name) const;

  /// What they mean, one by one. `name_of` says how the user knows an option.
  Result<void> apply_to(LaunchRequest& request, ReadAt where,
                        std::string (*name_of)(const ContainerOption&)) const;
  /// The same for all of a job's options, which must make sense together.
  [[nodiscard]] Result<LaunchRequest> parse(ReadAt where) const;

 private:
  Result<void> add_switch(const ContainerOption& option, const std::string& value);
  [[nodiscard]] bool is_given(const char* name) const;
  [[nodiscard]] std::vector<std::string> features() const;

  std::map<std::string_view, std::vector<std::string>> values_;  // by name of the option
};

}  // namespace spc
