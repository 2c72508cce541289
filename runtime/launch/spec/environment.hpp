#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launch/request/environment_wishes.hpp"
#include "task/user_identity.hpp"

namespace spc {

/// The script that runs the entrypoint of an enroot image.
inline constexpr char kEnrootScript[] = "/etc/rc";

/// An image's settings, from its record in the store (protocol/image_record.hpp, section settings).
struct ImageSettings {
  std::vector<std::string> environment;  ///< NAME=VALUE in the image's order
  std::string workdir;
  bool in_files = false;  ///< the rest is in files of the image: see launch/inside/image_files.hpp
  std::string start_script;  ///< in the container; runs the image's own command. Empty: unknown
  std::vector<std::string> environment_scripts;  ///< in the container, in order, for a shell to
                                                 ///< read; empty: `environment` says all
  std::vector<std::string>
      assignments;  ///< NAME=VALUE in those scripts, for who is to do without a shell
  std::vector<std::string> entrypoint;
  std::vector<std::string> command;  ///< Cmd: shown, never run, like the rest
  std::string user;
  std::string manifest;            ///< its digest; scontainer run adds it
  std::vector<std::string> facts;  ///< NAME=VALUE, what its files were found to have; shown
  std::vector<std::string> volumes;
  std::vector<std::string> ports;

  static ImageSettings parse(std::string_view records);
  /// The program with its arguments, executed by a shell that has read `environment_scripts`; as it
  /// is if there are none. `kept`: variables that no script changes.
  [[nodiscard]] std::vector<std::string> after_scripts(
      std::vector<std::string> program, const std::map<std::string, std::string>& kept = {}) const;
};

/// What a login sets: the container's PATH unless the image sets it.
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
  bool over_image = false;  ///< the image sets it as well, which does not count
};
using Environment = std::map<std::string, Variable>;

/// When an image's value of a variable counts.
enum class ImageValue {
  always,
  unset,  ///< if the job does not set it
  alone,  ///< in a step of one task whose job sets none of the class
  never,
};

/// Variables that an image does not simply override. The manual has this table (spank-container(7),
/// ENVIRONMENT).
struct VariableClass {
  const char* name;
  std::span<const std::string_view> names;  ///< ending in * for all that begin so
  ImageValue image;
  Origin origin;     ///< of the job's or user's value
  const char* rule;  ///< as the manual says it
};
std::span<const VariableClass> variable_classes();
/// Returns nullptr for a variable of no class.
const VariableClass* class_of(std::string_view name);

/// Returns whether a value by the image counts beside those of `environment`, as `ImageValue` says.
bool image_counts(std::string_view name, const Environment& environment);

/// The rules that pyxis users rely on, beside those of variable_classes(): PATH is the container's;
/// the image's variables override the job's; job variables that the image does not set are kept.
/// The site's values override the image's and those of the classes, variables kept by the site or
/// the user override these, and the user's (--container-env=NAME=VALUE) override all.
Environment merge_environment(const std::map<std::string, std::string>& job,
                              const ImageSettings& image, const EnvironmentWishes& site,
                              const EnvironmentWishes& user_wishes, const UserIdentity& user,
                              std::string_view workdir);

/// Names to set and to unset in the job's environment to get the container's.
struct EnvironmentChange {
  std::map<std::string, std::string> set;
  std::set<std::string> unset;
};
EnvironmentChange change_to(const Environment& environment,
                            const std::map<std::string, std::string>& job);

/// NAME=VALUE lines as a map, of those only that begin with one of `prefixes` if there are any; the
/// last of equal names wins.
std::map<std::string, std::string> as_map(const char* const* environment,
                                          std::span<const std::string_view> prefixes = {});

}  // namespace spc
