#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace spc {

/// What this user's srun was told of a tag. It lies in the user's keyring in the kernel, so that the later steps of a job need not ask
/// again: no file is left anywhere, other users cannot read it, and it disappears by itself.
struct RememberedTag {
  std::int64_t asked_at = 0;              ///< seconds since 1970
  std::int64_t tag_ttl = 0, job_ttl = 0;  ///< for how long it counts: TagAge::is_fresh()
  std::string answer;                     ///< `REGISTRY/NAME:TAG@DIGEST`; empty: there was none

  [[nodiscard]] std::string str() const;
  static std::optional<RememberedTag> parse(const std::string& text);
};

/// `image`: as typed. Nothing where the kernel has no keyrings, or the user may not use them.
std::optional<RememberedTag> remembered_tag(const std::string& image);
/// For so many seconds.
void remember_tag(const std::string& image, const RememberedTag& tag, unsigned seconds);

}  // namespace spc
