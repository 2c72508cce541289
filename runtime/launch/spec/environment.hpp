#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launch/request/environment_wishes.hpp"
#include "task/user_identity.hpp"

namespace spc {

/// The script that runs the entrypoint of an image of enroot.
inline constexpr char kEnrootScript[] = "/etc/rc";

/// What the image says about running it, from the record in the store (base/image_record.hpp, section settings).
struct ImageSettings {
  std::vector<std::string> environment;  ///< NAME=VALUE in the image's order
  std::string workdir;
  bool in_files = false;     ///< the rest is in files of the image: see launch/image_files.hpp
  std::string start_script;  ///< inside; what runs the image's own command. Empty: none is known
  std::vector<std::string> entrypoint;
  std::vector<std::string> command;  ///< Cmd: never run, told only, as the rest
  std::string user;
  std::vector<std::string> volumes;
  std::vector<std::string> ports;

  static ImageSettings parse(std::string_view records);
};

/// What a login gives: the container's PATH unless the image says otherwise.
inline constexpr char kDefaultPath[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where a variable's value comes from.
enum class Origin { job, slurm, login, image, site, kept, option, hook, entrypoint, container };
const char* name_of(Origin origin);

/// A task's environment, and why it is as it is.
struct Variable {
  std::string value;
  Origin origin{};
};
using Environment = std::map<std::string, Variable>;

/// The rules that users of pyxis rely on: HOME, USER, LOGNAME, SHELL and PATH are the container's; the host's language settings
/// go; the image's variables win over the job's; a job variable that the image does not know stays. The site's values win over
/// the image's, those that the site and then the user want to keep from the job over these, and the user's
/// (--container-env=NAME=VALUE) over all.
Environment merge_environment(const std::map<std::string, std::string>& job, const ImageSettings& image,
                              const EnvironmentWishes& site, const EnvironmentWishes& user_wishes, const UserIdentity& user,
                              std::string_view workdir);

/// Names to set and to unset in the job's environment, so that the job's variables become the container's.
struct EnvironmentChange {
  std::map<std::string, std::string> set;
  std::set<std::string> unset;
};
EnvironmentChange change_to(const Environment& environment, const std::map<std::string, std::string>& job);

/// NAME=VALUE lines as a map; the last of equal names wins.
std::map<std::string, std::string> as_map(const char* const* environment);

}  // namespace spc
