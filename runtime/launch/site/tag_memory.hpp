#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace spc {

/// What this user's srun was told of a tag. It lies in the user's keyring in the kernel, so that
/// the later steps of a job need not ask again: no file is left anywhere, other users cannot read
/// it, and it disappears by itself. It is one key for all tags: what a user can have of keys is
/// little, and others need it, too.
struct RememberedTag {
  std::int64_t asked_at = 0;              ///< seconds since 1970
  std::int64_t tag_ttl = 0, job_ttl = 0;  ///< for how long it counts: TagAge::is_fresh()
  std::string answer;                     ///< `REGISTRY/NAME:TAG@DIGEST`; empty: there was none

  [[nodiscard]] std::string str() const;
  static std::optional<RememberedTag> parse(const std::string& text);
};

/// What is remembered of all tags, the latest first: a line each.
class TagMemory {
 public:
  /// Times are seconds since 1970; what counted until then is found no more.
  [[nodiscard]] std::optional<RememberedTag> find(const std::string& image, std::int64_t now) const;
  void add(const std::string& image, const RememberedTag& tag, std::int64_t now,
           std::int64_t until);
  /// When nothing of it counts any more.
  [[nodiscard]] std::int64_t until() const;
  /// As many lines as `most` bytes hold.
  [[nodiscard]] std::string str(std::size_t most) const;
  /// Lines that it does not understand are left out.
  static TagMemory parse(const std::string& text);

 private:
  struct Line {
    std::int64_t until = 0;
    std::string image, tag;
  };
  std::vector<Line> lines_;
};

/// `image`: as typed. Nothing where the kernel has no keyrings, or the user may not use them.
std::optional<RememberedTag> remembered_tag(const std::string& image);
/// For so many seconds.
void remember_tag(const std::string& image, const RememberedTag& tag, unsigned seconds);

}  // namespace spc
