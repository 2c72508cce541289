#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "image/reference/reference.hpp"

namespace spc {

/// When the registry is asked about an image that is in the store.
enum class PullPolicy {
  newer,    ///< ask each time whether the tag has moved
  missing,  ///< ask only for what is not there
  always,   ///< fetch manifest and configuration each time
  never,    ///< use what is there and ask nobody
};
inline constexpr char kPullPolicies[] = "newer, missing, always or never";
std::optional<PullPolicy> parse_pull_policy(std::string_view text);
const char* name_of(PullPolicy policy);

/// Operating system and CPU as image indexes name them: `linux/amd64`, `linux/arm64/v8`.
struct Platform {
  std::string os;
  std::string architecture;
  std::string variant;  ///< empty: any

  static Result<Platform> parse(std::string_view text);
  /// The machine this was compiled for.
  static Platform host();
  [[nodiscard]] std::string str() const;
};

/// The file in the store's refs/ that says which image a reference stands for. What another machine than this would be given
/// is another image, so it has a file of its own. Empty when the name would be too long for a file.
std::optional<std::string> ref_file_of(const ImageReference& reference, const Platform& platform);

/// What `import` is asked to do. It travels as records `key=value\0` in a sealed memory file (kImportRequest).
struct ImportRequest {
  std::string image;  ///< ImageLocation::canonical()
  Platform platform = Platform::host();
  std::string config = SPC_CONFIG_FILE;  ///< path of config.toml
  std::optional<PullPolicy> pull;        ///< empty: what config.toml says
  std::uint32_t uid = 0;                 ///< of the job's user
  std::string registry_user;             ///< whose credentials to use; empty: none unless needed
  bool user_store = false;               ///< the store is the user's own: his proxies count
  bool meter = false;                    ///< wants to hear of every few bytes (ImportMessageKind::meter)
  bool only_digest = false;              ///< wants to know which image it is; nothing is stored

  bool verbose = false;  ///< wants to hear where the time went
  [[nodiscard]] std::string serialize() const;
  /// Unknown and repeated keys are errors: both sides come from one build.
  static Result<ImportRequest> parse(std::string_view bytes);
};

}  // namespace spc
