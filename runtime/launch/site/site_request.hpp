#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "config/config.hpp"
#include "protocol/policy.hpp"
#include "reference/location.hpp"
#include "reference/request.hpp"
#include "request/mount_spec.hpp"
#include "request/options.hpp"

namespace spc {

// --- site mounts ---

/// Whether to include the mounts the user configured for enroot.
enum class UsersMounts { yes, no };


/// Returns the mounts of every container: those of enroot's mounts.d, the system's before the
/// user's, then those of config.toml. An Error names the file.
Result<std::vector<MountSpec>> site_mounts(const SitePolicy& site, UsersMounts users);

// --- remote file ---

struct RemoteFileRequest {
  std::string image;  ///< as typed: ImageLocation::Kind::remote_file
  PullPolicy pull;
  std::optional<std::int64_t> since;  ///< as in LaunchRequest
  std::string stored;  ///< digest of the file that a stored container needs; empty: none
};

/// Downloads the file into the user's cache, in an unprivileged process with the user's IDs and the
/// job's environment. Returns the path there, whose last part is the file's digest.
Result<std::string> bring_remote_file(const RemoteFileRequest& wanted,
                                      const std::map<std::string, std::string>& environment,
                                      Log& log);

// --- trust rules ---

/// Checks `signature_policy` for images outside registries. They carry no signature, so policy.json
/// admits them only with insecureAcceptAnything, for podman's transports or for `squashfs` and
/// `directory`, and by their real path. (`import` checks images of registries.) A separate process,
/// `import trust`, reads the policy as the user, who cannot trace it.
Result<void> check_trust(const ImageLocation& image, const SitePolicy& site);
/// The transports of an archive given only by its path.
inline constexpr char kArchiveTransports[] = "oci-archive,docker-archive";
/// Checks an open file or directory that was given by its path, whose content determines its type.
/// All transports, separated by commas, must admit it.
Result<void> check_opened_trust(int file, const std::string& typed, const char* transports,
                                const SitePolicy& site);
/// Checks the original image of a stored container, as it was given when the container was created.
Result<void> check_stored_trust(const ImageLocation& image, const SitePolicy& site);
/// Checks the site's own importer, whose files have no signature and no known origin.
Result<void> check_importer(const SitePolicy& site);

// --- policy rules ---

/// Enforcement of config.toml's restrictions in the leader: a user can bypass srun, but not the
/// task.

/// Returns whether `path` is `directory` or below it, by whole components; both without . and .. .
bool lies_below(std::string_view path, std::string_view directory);

/// Checks `allowed_paths`: an image outside a registry must be a file or directory below one of
/// them. Replaces the path by the real path, which is compared: only users with write permission
/// there can replace the image.
Result<void> check_place(ImageLocation& image, const SitePolicy& site);

/// Checks `allowed_paths` for an open file, by descriptor. `typed` is for the message.
Result<void> check_opened_place(int file, const std::string& typed, const SitePolicy& site);

/// Checks `allowed_images`: refuses an image of a registry, or a file of a server, that no rule
/// allows to the calling process's user in this job.
Result<void> check_image(const ImageLocation& image, const SitePolicy& site,
                         const std::map<std::string, std::string>& job);

/// Returns the kernel's path of the descriptor. `typed` is for messages.
Result<std::string> real_path(int file, const std::string& typed);

/// Checks `mounts_off`: refuses the opened source of a mount, or an image directory, if its path on
/// the node is one of these paths, is below one, or contains one.
Result<void> check_mount_source(int source, const std::string& typed,
                                const std::vector<std::string>& mounts_off);

// --- site importer ---

/// External importer (`importer` in config.toml), with pyxis's contract:
///
///     PROGRAM get docker://IMAGE    prints the absolute path of a squashfs file; its stderr is
///                                   shown if it fails
///     PROGRAM release               the file is no longer needed; may be called repeatedly
///
/// It runs on the host, as the user, with the job's environment. The file is then used like any
/// other image file. It is released when the container is set up and has the file open.
class SiteImporter {
 public:
  /// `environment`: the job's.
  explicit SiteImporter(const std::map<std::string, std::string>& environment)
      : environment_(&environment) {}
  SiteImporter(const SiteImporter&) = delete;
  SiteImporter& operator=(const SiteImporter&) = delete;
  /// Releases the file. Like all members, to be called on the host only.
  ~SiteImporter() { release(); }

  /// Sets the program; empty: none is configured.
  void set_program(std::string program) { program_ = std::move(program); }
  /// Returns whether an importer is configured and handles images of this kind.
  [[nodiscard]] bool brings(const ImageLocation& image) const;
  /// Returns the path of the file. `image` as given by the user.
  Result<std::string> get(const std::string& image, Log& log);
  /// Releases the file; without effect if none was requested.
  void release();

 private:
  Result<std::string> run(const char* verb, const char* argument, Log* log);

  const std::map<std::string, std::string>* environment_;
  std::string program_;
  bool asked_ = false;  // requested and not released yet
};

// --- site request ---

/// Completes the request by the site's settings: its mounts precede the user's, its defaults apply
/// to unset options. Returns an Error if the site does not allow an option in use.
Result<LaunchRequest> fit_to_site(LaunchRequest request, const PolicyRecord& policy,
                                  const SitePolicy& site);

}  // namespace spc
