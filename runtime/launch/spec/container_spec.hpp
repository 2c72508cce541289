#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "config/config.hpp"
#include "launch/spec/environment.hpp"
#include "request/options.hpp"
#include "task/root_setup.hpp"
#include "task/user_identity.hpp"

namespace spc {

// --- container spec ---

/// Whether and how often the image's entrypoint runs: once per node, or in each task.
enum class EntrypointMode { no, node, task };

/// A mount as --container-explain prints it.
struct ShownMount {
  std::string source;  ///< the kernel's path, or the type of a new file system; empty: a removal
  std::string target, flags, asked_by;
};

/// The complete description of the container: launch() fills it in and executes it;
/// --container-explain prints it.
struct ContainerSpec {
  enum class From { store, file, directory };

  std::string image;  ///< ImageLocation::canonical()
  From from{};
  std::optional<Digest> manifest;  ///< of an image in the store
  std::uint32_t layers = 0;
  bool by_fuse = false;  ///< layers are served by FUSE, as configured by the site
  ImageSettings settings;
  RootSetup root;                  ///< mounts, files and accounts
  std::vector<ShownMount> mounts;  ///< shown_mounts() of `root`, before the hooks change it
  bool writable = true;
  std::uint32_t namespaces = 0;  ///< NamespaceBits
  UserIdentity user;
  std::string workdir;
  EntrypointMode entrypoint_mode = EntrypointMode::no;
  std::vector<std::string> entrypoint;  ///< runs before the tasks; empty: none
  Environment environment;
  std::vector<std::pair<std::string, std::string>>
      hook_origins;  ///< all hooks in order: name, and "built in" or the file
  std::vector<std::pair<std::string, std::string>>
      hooks;  ///< name and result of each hook, or why it did not run
};

/// Adds the image's settings. `record` has the form of protocol/image_record.hpp, or is empty for a
/// file or directory, which keeps its settings in its files (launch/task/image_files.hpp).
/// `manifest`: the agent's name of the image; Digest() if it is not in the store.
Result<void> add_image_record(ContainerSpec& spec, int record, const Digest& manifest);

/// Returns the tasks' work directory, an absolute path.
std::string workdir_of(const LaunchRequest& request, const ImageSettings& image);

/// Decides work directory, shell and environment. In the container, after reading the image's
/// files.
void decide(ContainerSpec& spec, const LaunchRequest& request, const SitePolicy& site,
            const std::map<std::string, std::string>& job_environment);

/// Returns the words of the image's own program: its entrypoint or start script, and the arguments
/// that it sets unless `has_arguments`. Empty if it sets none.
std::vector<std::string> own_program_of(const ImageSettings& image, bool has_arguments);

/// Returns the mode: --container-entrypoint decides whether, the site how; by default the site
/// decides both.
EntrypointMode entrypoint_mode(const LaunchRequest& request, const SitePolicy& site);

/// Enters the work directory. Refuses /proc links in its path.
Result<void> enter_workdir(const ContainerSpec& spec, const LaunchRequest& request);

/// Returns the mounts and removals, in order. The mounts' sources must be open.
std::vector<ShownMount> shown_mounts(const RootSetup& root);

/// Returns the specification as lines for the user in the form `request.explain`, without values of
/// variables that may be secrets. `job`: the job's environment.
std::vector<std::string> explain(const ContainerSpec& spec, const LaunchRequest& request,
                                 const SitePolicy& site,
                                 const std::map<std::string, std::string>& job);
/// Prints these lines: JSON on standard output, all else to `log`.
void print_explanation(const std::vector<std::string>& lines, ExplainForm form, Log& log);

}  // namespace spc
