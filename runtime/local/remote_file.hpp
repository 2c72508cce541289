#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/new_file.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "reference/location.hpp"
#include "reference/reference.hpp"
#include "reference/request.hpp"
#include "registry/challenge.hpp"
#include "registry/client.hpp"
#include "registry/http.hpp"

namespace spc {

// --- fetch file ---

/// Result of fetch_file().
struct FetchedFile {
  Digest digest;
  std::uint64_t size = 0;
  std::string media_type;  ///< Content-Type of the response; empty: none
  /// hash of its ETag, or else of its Last-Modified; empty: the response has neither
  std::optional<Digest> validator;
};

/// Fetches an object into an empty file, to its end. Callers that know the digest must compare it.
/// `meter`: called with the bytes received so far; may be empty.
Result<FetchedFile> fetch_file(RegistrySession& session, const FetchRequest& request, int file,
                               const std::function<void(std::uint64_t)>& meter = {});

// --- file cache ---

/// Cache of the files that a user's jobs have fetched from servers. The directory may be shared by
/// several nodes:
///
///     files/HEX             a file, named by its digest; its access time is its last use
///     files/names/HEX       the latest file of a name or URL (NamedImage, whose indexes are the
///                           validators of the server)
///     files/names/HEX.lock  FetchLock
///
/// All files belong to the user, who may remove any of them at any time.
class KeptFiles {
 public:
  /// Opens the directory below `cache` (~/.cache) and creates it if needed.
  static Result<KeptFiles> open(const std::string& cache);

  /// Returns the path of the file with this digest and marks it as used.
  [[nodiscard]] std::optional<std::string> find(const Digest& digest) const;
  /// Returns the latest image of `text` if its file still exists.
  [[nodiscard]] std::optional<NamedImage> known(const std::string& text) const;
  /// Records `named` as the latest image of `text`.
  Result<void> remember(const std::string& text, NamedImage named) const;

  /// Creates a file for keep().
  [[nodiscard]] Result<NewFile> create() const;
  /// Publishes the file under its digest and returns its path.
  Result<std::string> keep(NewFile& file, const Digest& digest) const;
  /// Removes files unused for 60 days, and unfinished ones after one day.
  void forget_old() const;
  /// Opens the file for FetchLock; the descriptor is invalid on failure.
  [[nodiscard]] UniqueFd lock_file(const std::string& text) const;

 private:
  std::string directory_;
};

/// Lock for fetching one file, among the user's processes on all nodes that share the directory.
/// The holder renews it periodically. A lock that is no longer renewed is not waited for; the file
/// is then fetched twice.
class FetchLock {
 public:
  /// Waits for the lock. `patience`: longest time without a renewal by its holder.
  static FetchLock wait_for(const KeptFiles& files, const std::string& text,
                            std::chrono::seconds patience);
  /// Renews the lock.
  void goes_on() const;

 private:
  UniqueFd file_;
};

// --- remote file ---

/// An image file at a server, a SIF or squashfs:
///
///     oras://[USER@][REGISTRY/]NAME[:TAG][@DIGEST]
///         an artifact of one file in a registry, as made by `apptainer push` and `oras push`
///     https://HOST[:PORT]/PATH[#sha256=HEX]
///         a file at a web server, with its digest if known
struct RemoteFile {
  /// Returns whether the text has one of these forms.
  static bool is_meant(std::string_view text);
  static Result<RemoteFile> parse(std::string_view text, std::string_view default_registry);

  std::string text;                     ///< as given
  std::optional<ImageReference> image;  ///< oras
  std::string url;                      ///< https
  std::string host;                     ///< HOST[:PORT] of the URL
  std::optional<Digest> digest;         ///< digest of the file, if known from the start
};

/// Clients and settings of a download. The references are borrowed.
struct RemoteAccess {
  HttpClient& http;
  Log& log;
  const Config& config;
  std::function<Result<std::optional<RegistrySecret>>()> ask_user;  ///< credentials for a registry
  std::function<void(std::uint64_t done, std::uint64_t total)> meter;  ///< total: 0 if unknown
};

/// Current version of the file at the server. Of a web server only the validator is known.
struct RemoteVersion {
  std::optional<Digest> digest;
  std::optional<Digest> validator;  ///< as in FetchedFile
};
/// Queries the current version without fetching the file.
Result<RemoteVersion> ask_version(const RemoteAccess& access, const RemoteFile& wanted);

/// Fetches the file into an empty file. A broken connection is resumed if the server supports
/// ranges. A digest mismatch is an error.
Result<FetchedFile> fetch_remote_file(const RemoteAccess& access, const RemoteFile& wanted,
                                      int file);

// --- cached fetch ---

/// A request of a job's step for a file of a server.
struct BroughtFile {
  std::string image;                  ///< as typed: `oras://...` or `https://...`
  std::optional<PullPolicy> pull;     ///< empty: as in config.toml
  std::optional<std::int64_t> since;  ///< time of the job's submission: TagAge
  std::string cache;                  ///< the user's cache directory: KeptFiles
  /// digest of the file that a stored container needs; used if it is still in the cache
  std::optional<Digest> stored{};
};

/// Returns the path of the file in the user's cache. Fetches it if it is missing or has changed at
/// the server, which is queried at most once within a job. The site's rules for registries apply to
/// any server.
Result<std::string> bring_file(
    const BroughtFile& wanted, const Config& config, Log& log,
    const std::function<Result<std::optional<RegistrySecret>>(const ImageReference&)>& ask_user);

}  // namespace spc
