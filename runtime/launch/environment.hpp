#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launch/user_identity.hpp"

namespace spc {

/// What the image says about running it, from the record in the store (base/image_record.hpp, section settings).
struct ImageSettings {
  std::vector<std::string> environment;  ///< NAME=VALUE in the image's order
  std::string workdir;
  bool in_files = false;     ///< the rest is in files of the image: see launch/image_files.hpp
  std::string start_script;  ///< inside; what runs the image's own command. Empty: none is known

  static ImageSettings parse(std::string_view records);
};

/// What a login gives: the container's PATH unless the image says otherwise.
inline constexpr char kDefaultPath[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names to set and to unset in the job's environment, so that the job's variables become the container's.
struct EnvironmentChange {
  std::map<std::string, std::string> set;
  std::set<std::string> unset;
};

/// The rules that users of pyxis rely on: the image's variables win over the job's, except those named in `keep`
/// (--container-env); HOME, USER, LOGNAME, SHELL and PATH are the container's; the host's language settings go; a job
/// variable that the image does not know stays. PyTorch images also get RANK and LOCAL_RANK.
EnvironmentChange merge_environment(const std::map<std::string, std::string>& job, const ImageSettings& image,
                                    const std::set<std::string>& keep, const UserIdentity& user, std::string_view workdir);

/// NAME=VALUE lines as a map; the last of equal names wins.
std::map<std::string, std::string> as_map(const char* const* environment);

}  // namespace spc
