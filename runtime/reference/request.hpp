#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "reference/reference.hpp"

namespace spc {

/// When to query the registry for an image that is in the store.
enum class PullPolicy {
  newer,    ///< resolve the tag each time
  missing,  ///< only for images that are not in the store
  always,   ///< fetch manifest and configuration each time
  never,    ///< never query; use stored images only
};
inline constexpr char kPullPolicies[] = "newer, missing, always or never";
std::optional<PullPolicy> parse_pull_policy(std::string_view text);
const char* name_of(PullPolicy policy);

/// Operating system and architecture as in image indexes: `linux/amd64`, `linux/arm64/v8`.
struct Platform {
  std::string os;
  std::string architecture;
  std::string variant;  ///< empty: any

  /// Parses OS/ARCHITECTURE[/VARIANT] and returns its normal form.
  static Result<Platform> parse(std::string_view text);
  /// Returns the platform of this build.
  static Platform host();
  [[nodiscard]] std::string str() const;
  /// Returns the platform with the architecture's name in the OCI image specification: x86_64 and
  /// x86-64 are amd64, aarch64 arm64, armhf arm/v7, armel arm/v6, i386 to i686 386. Variants begin
  /// with v.
  [[nodiscard]] Platform normalized() const;
};

/// Returns the store's file name for the image that a reference resolves to. Each platform has its
/// own name. Empty if it would be too long for a file.
std::optional<std::string> ref_file_of(const ImageReference& reference, const Platform& platform);

/// Returns the store's file name for a tag together with the digest that it was resolved to. No
/// other request uses this name, and only readers that know both can find it.
std::optional<std::string> ref_file_of(const ImageReference& tag, const Platform& platform,
                                       const Digest& resolved);

/// Returns whether to query the registry even if the image is in the store.
inline bool asks_anyway(PullPolicy policy) {
  return policy == PullPolicy::newer || policy == PullPolicy::always;
}

/// Returns the digest of a tag that srun has resolved once for all nodes of a step, from one of the
/// words `REGISTRY/NAME:TAG@DIGEST`. The words are the user's and grant nothing that the user could
/// not type: they select an image, not the right to use it.
std::optional<Digest> resolved_tag(const ImageReference& tag, std::string_view words);

/// Time of a tag's last resolution at the registry, and the time now, in seconds since 1970.
struct TagAge {
  std::int64_t asked_at = 0;
  std::int64_t now = 0;

  /// Parses the time in the job's variable. A user who changes it gets an older resolution.
  static std::optional<std::int64_t> parse_time(std::string_view text);
  /// Returns whether the resolution is still valid: for `ttl` seconds, and for `job_ttl` seconds if
  /// it was made after `since`. A resolution in the very second of `since` is not: a tag moved
  /// before the job was submitted must be seen as moved.
  [[nodiscard]] bool is_fresh(std::int64_t ttl, std::int64_t job_ttl,
                              const std::optional<std::int64_t>& since) const {
    const std::int64_t age = now - asked_at;  // below 0: the clock was set back
    return age >= 0 && (age < ttl || (since && asked_at > *since && age < job_ttl));
  }
};

/// A request to `import`, passed as records `key=value\0` in one message (kImportSource).
struct ImportRequest {
  std::string image;  ///< ImageLocation::canonical()
  Platform platform = Platform::host();
  std::string config = SPC_CONFIG_FILE;  ///< path of config.toml
  std::string user_containers;           ///< Places::containers
  std::optional<PullPolicy> pull;        ///< empty: as in config.toml
  /// registry images: only this manifest is accepted, whatever the tag resolves to
  std::optional<Digest> manifest;
  std::optional<Digest> resolved;     ///< resolved_tag(); ignored if the registry does not have it
  std::uint32_t uid = 0;              ///< of the job's user
  std::optional<std::int64_t> since;  ///< time of the job's submission: TagAge
  std::string registry_user;  ///< login name of the credentials to use; empty: none unless needed
  bool user_store = false;    ///< the store is the user's own: the user's proxies apply
  bool meter = false;         ///< report progress every few bytes (ImportMessageKind::meter)
  bool only_digest = false;   ///< only resolve the image and send its configuration; store nothing
  bool own_layers = false;    ///< the layers must be in the store: a stored container needs them
  bool only_shared = false;   ///< only fill the shared store; there is no other store

  /// number of nodes of the step, which may ask srun's tracker (protocol/tracker.hpp); 0: there is
  /// none
  std::uint32_t step_nodes = 0;
  bool verbose = false;  ///< report a timing breakdown
  bool record = false;   ///< report where the bytes came from, for the administrator's log
  [[nodiscard]] std::string serialize() const;
  /// Parses serialize()'s records. Unknown and repeated keys are errors: both sides come from the
  /// same build.
  static Result<ImportRequest> parse(std::string_view bytes);
};

}  // namespace spc
