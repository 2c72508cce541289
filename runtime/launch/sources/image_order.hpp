#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/process/child.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "launch/site/site_request.hpp"
#include "launch/sources/named_container.hpp"
#include "launch/spec/container_spec.hpp"
#include "protocol/policy.hpp"
#include "reference/location.hpp"
#include "request/options.hpp"

namespace spc {

// --- user source ---

/// The leader's handle of `user-source` (protocol/user_source.hpp), the process that reads the
/// user's data for `import`. It starts on the first request, so never for a public image. It is
/// gone, with all its children, before the container is entered, so the user's program inherits
/// nothing from it.
class UserSource {
 public:
  UserSource() = default;
  UserSource(const UserSource&) = delete;
  UserSource& operator=(const UserSource&) = delete;
  ~UserSource() { stop(); }

  /// Starts the process for podman in another process, because this one cannot gain privileges.
  using Elsewhere = std::function<Result<void>(int socket, const std::string& location)>;
  void start_for_podman(Elsewhere elsewhere) { elsewhere_ = std::move(elsewhere); }
  /// Prepares the start. `socket`: the end for requests. `environment`: the job's. `tracker`:
  /// srun's address (kTrackerVariable), or empty.
  void prepare(UniqueFd socket, const ImageLocation& location,
               const std::map<std::string, std::string>& environment, std::string tracker);
  /// Returns when `agent` is readable. Until then, the first request starts the process.
  Result<void> wait_for(int agent);
  /// Kills and reaps it, and closes the socket.
  void stop();

 private:
  Result<void> start();

  UniqueFd socket_;  // until the process has it, or no more requests are possible
  ImageLocation location_;
  const std::map<std::string, std::string>* environment_ = nullptr;
  std::string tracker_;
  Elsewhere elsewhere_;
  bool started_ = false;
  Child child_;
};

// --- local image ---

/// A file or directory given as image, opened as the user. Its type is detected from its content.
struct LocalImage {
  enum class Kind { squashfs, directory, archive };

  Kind kind{};
  UniqueFd file;             ///< open for reading; O_PATH for a directory
  std::uint64_t offset = 0;  ///< squashfs: its start in the file, in bytes
  std::string warning;       ///< one line for the user, or empty
};

/// Opens a local image. `path` may be relative to the working directory. Refuses everything except
/// files and directories without opening it, so that no FIFO or device can block the task.
Result<LocalImage> open_local_image(const std::string& path);

/// Returns "did you mean ./NAME?" if `image`, the name of a registry image, is also the name of a
/// file in the working directory; otherwise an empty text.
std::string did_you_mean_file(const std::string& image);

// --- image order ---

/// The image part of the order for the agent.
struct ImageOrder {
  ContainerSpec::From from{};
  std::uint32_t flags = 0;
  Digest manifest;
  Digest image_name;  ///< the key of the name that `import` may write
  std::uint64_t offset = 0;
  UniqueFd file;        ///< an image file, open for reading, for `fuse`; or a directory (O_PATH)
  std::string request;  ///< request for `import`, if the image belongs in the store
  std::string file_digest;  ///< digest of a server's file, without its algorithm
};

/// Returns the name of the step's image, as far as it is known without a registry.
WantedImage wanted_image(const LaunchRequest& request, const ImageLocation& image,
                         const PolicyRecord& policy);

/// Input of order_image(): an image, which a named container then records, or the stored container
/// of that name.
struct ImageOrderRequest {
  const LaunchRequest& request;
  const PolicyRecord& policy;
  const SitePolicy& site;
  const std::map<std::string, std::string>& job;  ///< its environment
  const Digest& earlier;                          ///< image of another task of the step, if any
  NamedStart& named;
  SiteImporter& importer;
  Log& log;
};
Result<ImageOrder> order_image(const ImageOrderRequest& with, ImageLocation image);

}  // namespace spc
