#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// An fstab line in enroot-mount's format: SOURCE TARGET TYPE OPTIONS FREQ PASS, with escapes such as `\040` for blanks.
struct EnrootFstabLine {
  std::string source;
  std::string target;             ///< in the container's root
  std::string type;               ///< "none" if the source is a path
  std::string data;               ///< file system options as given, with commas
  unsigned long flags = 0;        ///< MS_* without propagation; 0 with a propagation: nothing is mounted
  unsigned long propagation = 0;  ///< MS_PRIVATE and so on, with MS_REC
  enum class Create { no, file, directory, as_source } create = Create::no;
  bool detach = false;  ///< unmount the target
  bool no_fail = false;
  bool quiet = false;  ///< do not report ignored failures
  int pass = 0;

  bool operator==(const EnrootFstabLine&) const = default;
  [[nodiscard]] bool mounts() const { return flags != 0 || propagation == 0; }
};

/// The longest line, in bytes.
inline constexpr std::size_t kMostOfFstabLine = 4096;

/// enroot's defaults for missing fields:
///   SOURCE                   the same path in the container, rbind,x-create=auto
///   SOURCE TARGET            rbind,x-create=auto; after `tmpfs` a tmpfs
///   SOURCE OPTIONS           the same path in the container
///   SOURCE TARGET OPTIONS    type none
/// The pass number is the sixth field, or the fifth if that is 0 or missing.
Result<std::vector<EnrootFstabLine>> parse_enroot_mounts(std::string_view text);

}  // namespace spc
