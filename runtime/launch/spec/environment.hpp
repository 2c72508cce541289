#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "request/options.hpp"
#include "task/user_identity.hpp"

namespace spc {

/// The script of an enroot image that runs its entrypoint.
inline constexpr char kEnrootScript[] = "/etc/rc";

/// An image's settings, from its record in the store (protocol/image_record.hpp, section settings).
struct ImageSettings {
  std::vector<std::string> environment;  ///< NAME=VALUE in the image's order
  std::string workdir;
  /// Other settings are in files of the image: see launch/task/image_files.hpp.
  bool in_files = false;
  /// Path in the container that runs the image's own command; empty: unknown.
  std::string start_script;
  /// Paths in the container of scripts that a shell reads in this order; empty: `environment` is
  /// complete.
  std::vector<std::string> environment_scripts;
  std::vector<std::string>
      assignments;  ///< NAME=VALUE in those scripts, for readers without a shell
  std::vector<std::string> entrypoint;
  std::vector<std::string> command;  ///< Cmd: shown, never run, like the rest
  std::string user;
  std::string manifest;            ///< its digest; added by scontainer run
  std::vector<std::string> facts;  ///< NAME=VALUE, facts found in its files; shown
  std::vector<std::string> volumes;
  std::vector<std::string> ports;

  static ImageSettings parse(std::string_view records);
  /// Returns the program with its arguments, executed by a shell after it has read
  /// `environment_scripts`; unchanged if there are none. `kept`: variables that no script changes.
  [[nodiscard]] std::vector<std::string> after_scripts(
      std::vector<std::string> program, const std::map<std::string, std::string>& kept = {}) const;
};

/// The PATH of a login, used in the container unless the image sets it.
inline constexpr char kDefaultPath[] =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The origin of a variable's value.
enum class Origin {
  job,
  login,
  image,
  user,
  slurm,
  launch,
  mpi,
  gpu,
  site,
  kept,
  option,
  hook,
  entrypoint,
  container
};
const char* name_of(Origin origin);

/// A task's environment, with origins.
struct Variable {
  std::string value;
  Origin origin{};
  bool over_image = false;  ///< the image sets the variable as well; its value is not used
};
using Environment = std::map<std::string, Variable>;

/// When an image's value of a variable is used.
enum class ImageValue {
  always,
  unset,  ///< if the job does not set it
  alone,  ///< in a step of one task whose job sets no variable of the class
  never,
};

/// Variables with special precedence between image and job. The manual has this table
/// (spank-container(7), ENVIRONMENT).
struct VariableClass {
  const char* name;
  std::span<const std::string_view> names;  ///< ending in * for a prefix
  ImageValue image;
  Origin origin;     ///< origin of the job's or user's value
  const char* rule;  ///< as worded in the manual
};
std::span<const VariableClass> variable_classes();
/// Returns nullptr for a variable without a class.
const VariableClass* class_of(std::string_view name);

/// Returns whether the image's value is used next to those of `environment`: see ImageValue.
bool image_counts(std::string_view name, const Environment& environment);

/// Merges job, image, site and user variables. Apart from variable_classes(), the rules are those
/// that pyxis users rely on: PATH is the container's; the image's variables override the job's; job
/// variables that the image does not set are kept. The site's values override the image's and those
/// of the classes, variables kept by the site or the user override these, and the user's
/// (--container-env=NAME=VALUE) override all.
Environment merge_environment(const std::map<std::string, std::string>& job,
                              const ImageSettings& image, const EnvironmentWishes& site,
                              const EnvironmentWishes& user_wishes, const UserIdentity& user,
                              std::string_view workdir);

/// Changes to the job's environment that yield the container's: names to set and to unset.
struct EnvironmentChange {
  std::map<std::string, std::string> set;
  std::set<std::string> unset;
};
EnvironmentChange change_to(const Environment& environment,
                            const std::map<std::string, std::string>& job);

/// Parses NAME=VALUE entries into a map, only those that begin with one of `prefixes` if there are
/// any. The last of equal names wins.
std::map<std::string, std::string> as_map(const char* const* environment,
                                          std::span<const std::string_view> prefixes = {});

}  // namespace spc
