#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/process/child.hpp"
#include "base/result.hpp"
#include "config/config.hpp"
#include "export/write_image.hpp"
#include "reference/request.hpp"
#include "tool/images/image_mount.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- helper program ---

/// A helper process. It is killed when this object or this process ends.
class HelperProgram {
 public:
  enum class Environment { empty, ours };

  /// `descriptors[i]` becomes descriptor 3+i of the program. 0 and 1 are /dev/null, 2 is the
  /// caller's. All other descriptors are closed.
  static Result<HelperProgram> start(const std::string& path,
                                     const std::vector<std::string>& arguments,
                                     const std::vector<int>& descriptors, Environment environment);

  HelperProgram() = default;

  [[nodiscard]] bool running() const { return child_.running(); }
  /// Becomes readable when the program has ended.
  [[nodiscard]] int watch() const { return child_.watch(); }
  /// Waits for its end. Returns its exit status, or 128 plus the number of the signal that killed
  /// it.
  int wait() { return wait_status().code(); }
  ExitStatus wait_status() { return child_.wait(); }
  void kill() { child_.kill(); }

 private:
  explicit HelperProgram(Child child) : child_(std::move(child)) {}
  Child child_;
};

// --- import run ---

/// Pulls an image into the caller's own store: runs `import` and acts as the agent
/// (protocol/import.hpp). Returns the digest that names the image's record.
///
/// The converter is sandboxed as on a node, and a layer is published only after `layer-verifier`
/// has accepted it. Files have no name until then, so a crash leaves no files behind.
Result<Digest> import_into_own_store(int store, const ImportRequest& request, PullDisplay& display);

/// An image at its origin, before a pull.
struct SourceImage {
  Digest digest;
  std::string config;  ///< as delivered by the origin
};
/// Resolves the image without storing it, as `request` specifies.
Result<SourceImage> look_at_source(int store, const ImportRequest& request, PullDisplay& display);

/// Pulls the image into the site's shared store, as `request` specifies. The calling process must
/// run as the service user.
Result<Digest> import_into_shared_store(const ImportRequest& request, PullDisplay& display);

// --- obtain ---

/// An image that a command needs, and how it is pulled.
struct PullRequest {
  std::string image;  ///< as given by the user
  std::optional<Platform> platform;
  std::optional<PullPolicy> pull;  ///< empty: config.toml decides
  bool quiet = false;
  bool verbose = false;
};
/// Parses the options --platform, --pull, --quiet and --verbose.
Result<PullRequest> parse_wanted(const Arguments& arguments, const std::string& image);

/// Pulls `oras://...` or `https://...`, a SIF or squashfs file, into the caller's own store under
/// that name. `store` is the store's directory.
using RemotePull = Result<Digest>(int store, const Config& config, const PullRequest& wanted);
/// Does so by `scontainer pull` in the program that has the clients of registries and web servers.
/// That program reports its error; the one returned has no message.
RemotePull pull_by_images_program;

/// The caller's own store with the image in it, pulled as `pull` requires. A stored image may be
/// used without a registry request. If the registry cannot be reached, a warning reports that the
/// stored image is used.
struct ObtainedImage {
  UniqueFd store;
  ListedImage image;
};
Result<ObtainedImage> obtain(const Places& places, const Config& config, const PullRequest& wanted,
                             RemotePull* pull_file = pull_by_images_program);

/// Returns whether an image's USER is another user. Containers run as the calling user.
inline bool is_other_user(std::string_view user) {
  return !user.empty() && !user.starts_with("root") && user != "0" && !user.starts_with("0:");
}

/// Returns digest and configuration of the image at its origin, without storing it.
Result<SourceImage> image_at_source(const Places& places, const Config& config,
                                    const PullRequest& wanted);

// --- local image ---

/// Settings of an image that is a file system of the user: they are read from its files
/// (launch/task/image_files.hpp).
inline const std::string kSettingsInFiles = std::string("settings=files") + '\0';

/// An image ready to be mounted.
struct OpenedImage {
  std::string name;
  ImageFiles files;
  std::string settings;  ///< records `key=value\0`: env, workdir, entrypoint, cmd
};

/// Opens the image that the user named: from the user's store, pulled if necessary, or a file or
/// directory.
Result<OpenedImage> open_image(const Places& places, const Config& config,
                               const PullRequest& wanted);

/// Opens a stored image without pulling.
Result<OpenedImage> open_stored_image(int store, const ListedImage& image);

// --- file import ---

// --- image archive ---

/// A mountable image with the data for its archive.
struct ArchiveSource {
  OpenedImage opened;
  std::string config;  ///< image configuration; empty if there is none
};

/// Opens an image of the caller's store, or a squashfs, SIF or directory of the user.
Result<ArchiveSource> open_archive_source(const Places& places, const Config& config,
                                          const std::string& name);

/// Returns the settings of a mounted image as records `key=value\0`. The settings of a bare file
/// system are read from its files: the environment, the work directory, and the script that runs
/// its command, which becomes the entrypoint. Needs a user namespace.
Result<std::string> settings_of(const OpenedImage& opened, int root);

/// Changes the settings of a mounted image that is to be written.
using ChangeSource = std::function<Result<void>(ArchiveSource& source, int root)>;

/// Writes the image as an OCI archive with one compressed layer into `file`. Works in a child
/// process, so that the caller stays in its namespaces.
Result<void> write_archive_apart(const Places& places, ArchiveSource source, int file,
                                 const ChangeSource& change = {});

}  // namespace spc::tool
