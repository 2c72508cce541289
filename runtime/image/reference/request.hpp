#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "image/reference/reference.hpp"

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

  static Result<Platform> parse(std::string_view text);
  /// The platform this was compiled for.
  static Platform host();
  [[nodiscard]] std::string str() const;
};

/// The name in the store of the image that a reference resolves to. Other platforms have
/// names of their own. Empty if the name would be too long for a file.
std::optional<std::string> ref_file_of(const ImageReference& reference, const Platform& platform);

/// The same for a tag of which somebody said what it stands for: no other request has this name,
/// and whoever reads it knows both.
std::optional<std::string> ref_file_of(const ImageReference& tag, const Platform& platform,
                                       const Digest& resolved);

/// Whether a registry is asked although the image is in the store.
inline bool asks_anyway(PullPolicy policy) {
  return policy == PullPolicy::newer || policy == PullPolicy::always;
}

/// What a tag stands for, in words of the form `REGISTRY/NAME:TAG@DIGEST`: srun asks once for all
/// nodes of a step. The words come from the user, so they say no more than the user could have
/// typed: which image, not who may use it.
std::optional<Digest> resolved_tag(const ImageReference& tag, std::string_view words);

/// When a registry was last asked what a tag stands for, and the time now, in seconds since 1970.
struct TagAge {
  std::int64_t asked_at = 0;
  std::int64_t now = 0;

  /// A time as the job's variable has it. The user can write another one there, and then gets an
  /// older answer.
  static std::optional<std::int64_t> parse_time(std::string_view text);
  /// Whether it need not be asked again: for `ttl` seconds, and for `job_ttl` seconds if it was
  /// asked after `since`. In that very second it does not count: a tag that was moved before the
  /// job was submitted is seen as moved.
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
  std::optional<PullPolicy> pull;        ///< empty: as in config.toml
  std::optional<Digest>
      manifest;  ///< of a registry's image: only this one will do, whatever the tag is now
  std::optional<Digest> resolved;     ///< resolved_tag(), unless the registry does not have that
  std::uint32_t uid = 0;              ///< of the job's user
  std::optional<std::int64_t> since;  ///< when the job was submitted: TagAge
  std::string registry_user;          ///< whose credentials to use; empty: none unless needed
  bool user_store = false;            ///< the store is the user's own: the user's proxies apply
  bool meter = false;  ///< report progress every few bytes (ImportMessageKind::meter)
  bool only_digest =
      false;  ///< only resolve the image, and send its configuration; nothing is stored
  bool only_shared = false;  ///< only fill the shared store: there is no other one

  std::uint32_t meet = 0;  ///< nodes of the step, which may find each other at srun
                           ///< (protocol/meeting.hpp); 0: nobody listens
  bool verbose = false;    ///< report a timing breakdown
  bool record = false;     ///< report where the bytes came from, for the administrator's log
  [[nodiscard]] std::string serialize() const;
  /// Unknown and repeated keys are errors: both sides come from the same build.
  static Result<ImportRequest> parse(std::string_view bytes);
};

}  // namespace spc
