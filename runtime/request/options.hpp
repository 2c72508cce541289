#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "config/config.hpp"
#include "protocol/task.hpp"
#include "reference/location.hpp"
#include "reference/request.hpp"
#include "request/container_name.hpp"
#include "request/mount_spec.hpp"

namespace spc {

// --- device names ---

/// Adds the devices VENDOR/CLASS=NAME[,...] in order, without duplicates. Only the node can check
/// whether a device exists.
Result<void> add_device_names(std::vector<std::string>& devices, std::string_view list);

// --- namespaces ---

/// Parses a list as in --container-unshare, NS[,NS...], into NamespaceBits.
Result<std::uint32_t> parse_namespaces(std::string_view list);

// --- environment requests ---

/// Variables requested by --container-env or the site.
struct EnvironmentWishes {
  std::vector<std::string> keep;  ///< names and patterns (with * and ?) that keep the job's value
  std::map<std::string, std::string> values;          ///< set to these values in any case
  std::map<std::string, std::string> before, behind;  ///< texts added to the container's value
  std::vector<std::string> unset;  ///< names and patterns of variables that tasks do not get

  /// Adds `ITEM[,ITEM...]`, an item being NAME, PATTERN, NAME=VALUE, -NAME or -PATTERN to
  /// unset, NAME+=VALUE to append, or +NAME=VALUE to put in front; quoting as in next_piece() of
  /// request/mount_spec.hpp.
  Result<void> add(std::string_view list);
  /// Adds `NAME|PATTERN[,...]` to `unset`.
  Result<void> add_unset(std::string_view list);
  [[nodiscard]] bool keeps(std::string_view name) const;
  [[nodiscard]] bool unsets(std::string_view name) const;
  /// Returns whether a value was given, not only an addition to it.
  [[nodiscard]] bool sets(const std::string& name) const { return values.contains(name); }
  /// Returns a warning about names to keep that are not set in the job; empty if there are none.
  [[nodiscard]] std::string missing_in(const std::map<std::string, std::string>& job) const;

  /// Converts the keys `keep_env`, `unsetenv` and `env` of config.toml.
  static EnvironmentWishes of_site(const SitePolicy& site);

  /// Returns the records (base/text.hpp) that parse() reads, for the leader's notes.
  [[nodiscard]] std::string serialize() const;
  /// Reads the records of serialize() among others.
  static EnvironmentWishes parse(std::string_view records);

 private:
  /// Adds NAME=VALUE, NAME+=VALUE or +NAME=VALUE; returns false if NAME is none.
  bool assign(std::string name, const std::string& value);
};

/// Returns whether `pattern` matches `text`: * matches any characters, ? matches one.
bool matches_pattern(std::string_view pattern, std::string_view text);

// --- messages ---

/// The style of messages: `messages` in config.toml. Scripts and monitoring written for pyxis
/// search for some of its lines. These lines are exact. All other lines have this package's text
/// with pyxis's prefix.
enum class MessageStyle { own, pyxis };

MessageStyle message_style(const SitePolicy& site);
/// Returns the prefix of every line for the user.
const char* message_prefix(MessageStyle style);

/// Events for which pyxis has its own text.
enum class Event {
  import_begins,  ///< object: the image as given by the user, as for the next two
  import_ends,
  import_fails,
  no_mount_source,  ///< the path
  no_workdir,       ///< the path
};

/// Returns pyxis's text; `detail` is the reason of a failure.
std::string in_words_of_pyxis(Event event, std::string_view object, std::string_view detail = "");

/// Returns `ours`, or an error with pyxis's text for the event. Both include the reason of a failed
/// system call. No style: returns `ours`.
Error in_words(const MessageStyle* style, Event event, std::string_view object, Error ours);

// --- launch request ---

/// Forms of --container-explain: about a screen, everything, or everything as JSON.
enum class ExplainForm { brief, all, json };

/// The user's request, with checked syntax.
struct LaunchRequest {
  UserPaths paths;               ///< how the paths below were read
  std::string image;             ///< empty only if there is a name
  std::string catalogue_name;    ///< name of `image` in the site's catalogue, if it was typed
  std::string environment_file;  ///< NAME of --environment; its values are set like options
  std::map<std::string, std::string> annotations;  ///< of the environment, for hooks
  std::vector<std::string> features;               ///< options in use, for the site's rules
  std::vector<MountSpec> mounts;
  std::string workdir;           ///< empty: the image's
  std::optional<bool> writable;  ///< empty: the site's default
  std::optional<bool> mount_home;
  std::optional<bool> mount_cwd;  ///< mount `paths.here` and start there; empty: the site's default
  std::optional<PullPolicy> pull;    ///< when to query the registry; empty: the site's default
  std::optional<Platform> platform;  ///< empty: the node's
  bool verbose = false;              ///< print a timing breakdown
  EnvironmentWishes environment;
  std::optional<ContainerName> name;
  std::string save;                      ///< file to write the container to; empty: none
  std::uint32_t namespaces = 0;          ///< NamespaceBits without own_user
  std::optional<MemorySize> tmpfs_size;  ///< limit of each writable part; empty: the site's default
  /// Paths of the node that the site does not allow as mount sources.
  std::vector<std::string> mounts_off;
  std::string max_tmpfs_size;      ///< the site's upper limit; empty: no limit
  std::optional<bool> remap_root;  ///< empty: the site's default, as for the next
  std::optional<bool> entrypoint;
  bool entrypoint_log = false;
  bool contain = false;  ///< hide the user's files
  std::string seccomp;  ///< seccomp profile: "default", or an absolute path; empty: only the site's
  bool private_layer = false;          ///< each task has its own container
  std::optional<bool> slurm;           ///< make Slurm's commands work; empty: the site's default
  std::optional<ExplainForm> explain;  ///< dry run; empty: none
  /// The given options, and "option" or the variable that gave them: for the dry run.
  std::vector<std::pair<std::string, std::string>> given;
  bool only_pull = false;            ///< pull only, without a container
  bool begins_job = false;           ///< at submission, before the job exists
  std::vector<std::string> command;  ///< command of the task, for the dry run
  std::string batch;                 ///< script, steps, or empty: the site's default
  std::optional<bool> gpu;  ///< inject GPUs; empty: if the step has any and the site allows it
  std::vector<std::string> devices;  ///< CDI names
  std::string mpi;                   ///< image, host, or empty: the site's default
  /// device nodes that the step may open, if determined from its cgroup
  std::optional<std::set<std::string>> granted_devices;
  MessageStyle* style = nullptr;  ///< the caller's; follows the site's settings once they are known
  std::vector<std::string> overrides;  ///< KEY=VALUE, overrides of the site's settings
  /// submission time of the job in seconds since 1970, if known
  std::optional<std::int64_t> since;
  std::string resolved;  ///< resolved tags from srun: resolved_tag()
  std::string tracker;   ///< srun's listening address: the value of kTrackerVariable; empty: none
  std::uint32_t nodes = 1;   ///< number of nodes of the step
  std::string batch_script;  ///< Slurm's copy of a batch step's script, mounted at the same path

  /// Adds the mount of the work directory, `paths.here`, and makes it the container's one if none
  /// was requested. "/" would cover the image and is left out.
  void mount_work_directory();
};

// --- options ---

/// Where options are read. At submission, nothing on the node is checked; in a container, the
/// host's files are not visible.
enum class ReadAt { submission, node, container };

/// One container option. This row defines it for srun, sbatch, salloc and `scontainer run`, which
/// register it, for the task, which reads it, and for a site, which can disable it.
struct ContainerOption {
  enum class Kind {
    once,  ///< a text, which may be a path; two different values contradict each other
    file,  ///< the same, but not a directory
    list,  ///< may be repeated
    on,    ///< a switch
    off    ///< a switch that negates its opposite
  };

  const char* name;      ///< name without dashes
  const char* argument;  ///< shown in --help; nullptr: none; of a switch: can be left out
  const char* help;
  const char* twin;  ///< SCONTAINER_<twin> and PYXIS_CONTAINER_<twin>; nullptr: none
  Kind kind;
  const char* opposite;  ///< the opposite switch; nullptr: none
  /// Applies the option. `value` is the text; for a switch "yes", or "no" if it has no opposite and
  /// its variable is false.
  Result<void> (*apply)(LaunchRequest& request, const std::string& value, ReadAt where);
  const char* run_help = nullptr;      ///< nullptr: not an option of `scontainer run`
  const char* run_argument = nullptr;  ///< if it differs from `argument`
  bool names_itself = false;           ///< the errors of apply() begin with the option's name

  [[nodiscard]] bool is_switch() const { return kind == Kind::on || kind == Kind::off; }
  /// Returns 0 if the option has no argument, 1 if it needs one, 2 if that can be left out.
  [[nodiscard]] int has_argument() const { return argument == nullptr ? 0 : is_switch() ? 2 : 1; }
};

/// Refuses a value that ends in a carriage return, as in a script with Windows line ends.
Result<void> refuse_carriage_return(std::string_view value);

/// Returns all options in the order of the help.
std::span<const ContainerOption> container_options();
/// Returns nullptr if the option is unknown.
const ContainerOption* find_option(std::string_view name);

/// Returns the names of the options that a site can disable with `features_off`.
std::vector<std::string_view> feature_names();

/// The given options and values, before they are interpreted.
class OptionTexts {
 public:
  using Variables = std::map<std::string, std::string>;
  /// Prefixes of the options' variables; the first match wins.
  static constexpr std::string_view kTwinPrefixes[] = {"SCONTAINER_", "PYXIS_CONTAINER_"};

  /// Adds NAME=VALUE, or NAME, to earlier options. Returns an Error for a contradiction.
  Result<void> add(std::string_view text);
  Result<void> add(const ContainerOption& option, const std::string& value);
  /// Adds the variables of options that are not given.
  Result<void> add_twins(const Variables& variables);
  /// Returns the value of --environment, or of its variable; empty: none.
  [[nodiscard]] std::string environment(const Variables& variables) const;
  /// Adds an environment's values of options that are not given. Lists begin with its values.
  Result<void> add_environment(const NamedEnvironment& environment);

  /// Returns whether the option is given; for a switch, whether it is on.
  [[nodiscard]] bool has(std::string_view name) const;
  /// Returns the last given value; empty if the option is not given.
  [[nodiscard]] std::string last(std::string_view name) const;

  /// Returns the given options by their names, and "option" or the variable that gave them.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> given(
      std::string (*name_of)(const ContainerOption&)) const;
  /// Interprets all options one by one, paths as `request.paths` says. `name_of` returns the user's
  /// name of an option.
  Result<void> apply_to(LaunchRequest& request, ReadAt where,
                        std::string (*name_of)(const ContainerOption&)) const;
  /// Interprets all options of a job, which must be consistent.
  [[nodiscard]] Result<LaunchRequest> parse(ReadAt where, const UserPaths& paths = {}) const;

 private:
  Result<void> add_switch(const ContainerOption& option, const std::string& value);
  [[nodiscard]] bool is_given(const char* name) const;
  /// Adds an environment's values of a list in front of the given ones.
  Result<void> add_before(const ContainerOption& option, const NamedEnvironment& environment);
  [[nodiscard]] std::vector<std::string> features() const;

  std::map<std::string_view, std::vector<std::string>> values_;  // by option name
  // Variable that supplied the values, by option name.
  std::map<std::string_view, std::string> variables_;
  std::map<std::string, std::string> annotations_;
  // FILE:LINE of values of an environment, by option and value.
  std::map<std::pair<std::string_view, std::string>, std::string> lines_;
};

}  // namespace spc
