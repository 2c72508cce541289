#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// One text of `allowed_images`: who may use which images of registries.
///
///     PATTERN [user=NAME|UID[,...]] [group=NAME|GID[,...]] [partition=NAME[,...]]
///
/// PATTERN is one of fnmatch(3), in which * stands for slashes, too; it is compared with
/// REGISTRY/REPOSITORY. Each condition that is there must hold.
struct ImageRule {
  std::string pattern;
  std::vector<std::string> users, groups, partitions;

  static Result<ImageRule> parse(std::string_view text);
  [[nodiscard]] bool fits(const std::string& repository) const;

  bool operator==(const ImageRule&) const = default;
};

}  // namespace spc
