#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/request/launch_request.hpp"
#include "launch/spec/environment.hpp"
#include "launch/spec/mount_plan.hpp"
#include "task/user_identity.hpp"

namespace spc {

/// Whether and how often the image's entrypoint runs: once per node, or in each task.
enum class EntrypointMode { no, node, task };

/// What is executed: launch() fills it in and then does it; --container-explain prints it.
struct ContainerSpec {
  enum class From { store, file, directory };

  std::string image;  ///< ImageLocation::canonical()
  From from{};
  std::optional<Digest> manifest;  ///< of an image in the store
  std::uint32_t layers = 0;
  bool by_fuse = false;  ///< layers are served by FUSE, as configured by the site
  ImageSettings settings;
  std::vector<MountPlan> mounts;  ///< in the order in which they are attached
  bool writable = true;
  std::uint32_t namespaces = 0;  ///< NamespaceBits
  UserIdentity user;
  std::string workdir;
  EntrypointMode entrypoint_mode = EntrypointMode::no;
  std::vector<std::string> entrypoint;  ///< to run before the tasks; empty: none
  Environment environment;
  std::vector<std::pair<std::string, std::string>>
      hook_origins;  ///< all hooks in order: name, and "built in" or the file
  std::vector<std::pair<std::string, std::string>>
      hooks;  ///< what they did, or why not: name and text
};

/// Adds the image's settings: `record` has the form of protocol/image_record.hpp, or is empty: that
/// of a file or directory, which has its settings in its files (launch/inside/image_files.hpp).
/// `manifest`: as the agent names the image; Digest(): it is not in the store.
Result<void> add_image_record(ContainerSpec& spec, int record, const Digest& manifest);

/// Work directory of the tasks; absolute.
std::string workdir_of(const LaunchRequest& request, const ImageSettings& image);

/// Decides the rest: work directory, shell, environment. In the container, after reading the
/// image's own files.
void decide(ContainerSpec& spec, const LaunchRequest& request, const SitePolicy& site,
            const std::map<std::string, std::string>& job_environment);

/// --container-entrypoint says whether, the site how; by default the site says whether, too.
EntrypointMode entrypoint_mode(const LaunchRequest& request, const SitePolicy& site);

/// Enters the work directory. /proc links in its path are refused.
Result<void> enter_workdir(const ContainerSpec& spec, const LaunchRequest& request);

/// The specification as lines for the user; without values of variables that may be secrets.
std::vector<std::string> explain(const ContainerSpec& spec, const LaunchRequest& request);

}  // namespace spc
