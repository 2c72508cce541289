#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A line of an fstab as enroot-mount reads it: SOURCE TARGET TYPE OPTIONS FREQ PASS, with `\040` and its like for blanks.
struct EnrootFstabLine {
  std::string source;
  std::string target;             ///< in the container's root
  std::string type;               ///< "none" for what has a source in the tree
  std::string data;               ///< options of the file system, as they came, with commas
  unsigned long flags = 0;        ///< MS_* without propagation; 0 together with a propagation: nothing is mounted
  unsigned long propagation = 0;  ///< MS_PRIVATE and the like, MS_REC with them
  enum class Create { no, file, directory, as_source } create = Create::no;
  bool detach = false;  ///< takes away what is mounted there
  bool no_fail = false;
  bool quiet = false;  ///< says nothing about a failure that does not count
  int pass = 0;

  bool operator==(const EnrootFstabLine&) const = default;
  [[nodiscard]] bool mounts() const { return flags != 0 || propagation == 0; }
};

/// The longest line, in bytes.
inline constexpr std::size_t kMostOfFstabLine = 4096;

/// What enroot's own guesses where fields are missing:
///   SOURCE                   the same path inside, rbind,x-create=auto
///   SOURCE TARGET            rbind,x-create=auto; after `tmpfs` a tmpfs
///   SOURCE OPTIONS           the same path inside
///   SOURCE TARGET OPTIONS    type none
/// The pass number is the sixth field, or the fifth where that is 0 or missing.
Result<std::vector<EnrootFstabLine>> parse_enroot_mounts(std::string_view text);

}  // namespace spc
