#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "hook_engine/mount_options.hpp"

namespace spc {

/// An fstab line in enroot-mount's format: SOURCE TARGET TYPE OPTIONS FREQ PASS, with escapes such
/// as `\040` for blanks.
struct EnrootFstabLine : MountOptions {
  std::string source;
  std::string target;                ///< in the container's root
  std::string type;                  ///< "none" if the source is a path
  std::vector<std::string> options;  ///< as given
  std::string data;                  ///< those of the file system, with commas
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
/// `expand` changes each field before that, if it is given.
using ExpandField = std::function<std::string(std::string)>;
Result<EnrootFstabLine> parse_fstab_line(std::string_view line, const ExpandField& expand = {});

/// The lines of a file that are neither empty nor a comment, and their numbers.
std::vector<std::pair<unsigned, std::string_view>> fstab_lines(std::string_view text);

Result<std::vector<EnrootFstabLine>> parse_enroot_mounts(std::string_view text);

}  // namespace spc
