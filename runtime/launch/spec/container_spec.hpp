#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "launch/policy/site.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/spec/environment.hpp"
#include "launch/spec/mount_plan.hpp"
#include "task/user_identity.hpp"

namespace spc {

/// Whether and how often the image's entrypoint is run: for all tasks of a node by one of them, or by each.
enum class EntrypointMode { no, node, task };

/// What is executed: launch() fills it on its way and then does what it says; --container-explain shows it.
struct ContainerSpec {
  enum class From { store, file, directory };

  std::string image;  ///< the one text for it: ImageLocation::canonical()
  From from{};
  std::optional<Digest> manifest;  ///< of an image of the store
  std::uint32_t layers = 0;
  bool by_fuse = false;  ///< the site wants the layers to be served by FUSE
  ImageSettings settings;
  std::vector<MountPlan> mounts;  ///< in the order in which they are attached
  bool writable = true;
  std::uint32_t namespaces = 0;  ///< NamespaceBits
  UserIdentity user;
  std::string workdir;
  EntrypointMode entrypoint_mode = EntrypointMode::no;
  std::vector<std::string> entrypoint;  ///< what is run before the tasks; empty: nothing
  Environment environment;
  std::vector<std::pair<std::string, std::string>>
      hook_origins;                                        ///< all there are, in their order: name, and "built in" or the file
  std::vector<std::pair<std::string, std::string>> hooks;  ///< what they did, or why not: name and words
};

/// Adds what the image says about itself: `record` has the form of base/image_record.hpp.
Result<void> add_image_record(ContainerSpec& spec, int record);

/// Where the tasks start; absolute.
std::string workdir_of(const LaunchRequest& request, const ImageSettings& image);

/// Decides what is left: work directory, shell, environment. Inside, when the image's own files have been read.
void decide(ContainerSpec& spec, const LaunchRequest& request, const Site& site,
            const std::map<std::string, std::string>& job_environment);

/// --container-entrypoint says whether, the site how; by default the site says whether, too.
EntrypointMode entrypoint_mode(const LaunchRequest& request, const Site& site);

/// Changes to the work directory. Links of /proc in its path are refused.
Result<void> enter_workdir(const ContainerSpec& spec, const LaunchRequest& request);

/// The specification in lines for people; values of variables that may be secrets are not in it.
std::vector<std::string> explain(const ContainerSpec& spec, const LaunchRequest& request);

}  // namespace spc
