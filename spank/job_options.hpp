#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spank/options.hpp"

namespace spank_container {

// --- settings ---

/// The plugin's arguments in plugstack.conf, KEY=VALUE: keys of config.toml, which they override,
/// and pyxis's keys, so that a pyxis line works with only the file name changed.
struct Settings {
  std::vector<std::string> site;  ///< KEY=VALUE with keys of config.toml
  bool in_allocator = true;       ///< sbatch and salloc have the options
  std::string refused;  ///< error in the line; containers are refused then, other jobs run
};

Settings read_settings(std::span<const std::string> words);

// --- given options ---

/// The plugin's name. Slurm keeps options in a job's environment under it.
inline const char* own_plugin = "spank_container";

/// Reads a variable; returns false if it is unset.
using GetVariable = bool (*)(const char* name, std::string& value, void* arg);

/// Information about options that Slurm does not pass on:
///
/// - Whether a value is from the command line or was an option of the surrounding sbatch or salloc,
/// which Slurm keeps in the environment for all steps of the job. The former overrides the latter.
/// Two different values on the command line are an error. A variable of the option that the job
/// itself has set, which is nearer to the step, overrides the latter as well.
/// - All values of a repeated option: only the last one reaches the node. Options overridden by
/// their opposite reach it as well.
///
/// The plugin passes this to the node in variables of the step. Their names start with SLURM_SPANK_
/// because --export=NONE removes most others.

/// In srun, sbatch and salloc, before Slurm reads the options: converts options that the
/// surrounding sbatch or salloc has passed to another plugin, such as pyxis, into this plugin's.
void take_over_options_of(const char* plugin);

/// In a program that submits a job: records the options' variables, so that its steps can tell
/// which ones the job has set since.
void note_variables(GetVariable get, void* arg);

/// In srun, sbatch and salloc: returns the options of one component without values of the
/// environment that the command line, or a variable set in the job, overrides.
std::vector<GivenOption> without_beaten(std::span<const GivenOption> given, GetVariable get,
                                        void* arg);

/// In srun, sbatch and salloc, after all checks: sets the variables with which whole_given() on the
/// node restores `counts`, the effective options, from the options that Slurm has passed and will
/// pass on.
void send_beside(std::span<const GivenOption> counts, std::span<const GivenOption> handed_over);

/// In the task of a batch step to which Slurm has passed no options: returns the options that Slurm
/// keeps in the job's environment.
std::vector<GivenOption> kept_by_slurm(GetVariable get, void* arg);

/// In a task: restores all options from those that Slurm passes on.
std::vector<GivenOption> whole_given(std::span<const GivenOption> given, GetVariable get,
                                     void* arg);

// --- components ---

/// The options of one component of a heterogeneous step: see kComponentsVariable.
struct Component {
  int group = 0;  ///< number as in --het-group
  std::vector<GivenOption> given;

  bool operator==(const Component&) const = default;
};

/// Converts to and from the variable's value. Options are written by name, since another version of
/// the plugin may have another table. Unreadable text yields no components.
std::string write_components(const std::vector<Component>& components);
std::vector<Component> read_components(std::string_view text);

/// Returns the groups of the components on srun's command line, in the order in which srun passes
/// their options. `words`: the command line. Empty if ambiguous.
std::vector<int> groups_of_command_line(const std::vector<std::string>& words);

// --- hint about --container ---

/// In srun: returns a warning if the step's command begins with a value such as `true` directly
/// behind an option of ours that takes none; otherwise an empty text. `true`, `false` and `yes`
/// without arguments are commands. Reads the command line only then.
std::string hint_about_switch_value(int words, const char* const* command);
/// Returns that option, without dashes. `command_line`: words ended by NUL.
std::string switch_before(const std::string& command_line, std::string_view command);

/// Returns a hint if the calling srun, sbatch or salloc has Slurm's own option --container, for OCI
/// bundles, on its command line or in its environment: the user may have meant --container-image.
/// Otherwise returns an empty text.
std::string hint_about_oci_option();

/// Returns the value of --container in a command line as in /proc, or an empty text.
std::string oci_option_in(const std::string& command_line);

}  // namespace spank_container
