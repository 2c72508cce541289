#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- root path ---

enum class MakeTarget { no, file, directory };

/// Opens (O_PATH) `path` in the tree below `root`, whose links cannot lead out of it. With `make`,
/// creates missing components and the targets of dangling links. Going above `root` is EXDEV.
Result<UniqueFd> open_in_root(int root, const std::string& path, MakeTarget make);

// --- mount options ---

/// The combined options of a mount: those of fstab for every file system (mount(8)), and enroot's
/// own. The flags of --container-mounts have the same names.
struct MountOptions {
  unsigned long flags = 0;  ///< MS_* without propagation; 0 with a propagation: no mount is made
  unsigned long propagation = 0;  ///< MS_PRIVATE and so on, with MS_REC
  enum class Create { no, file, directory, as_source } create = Create::no;
  bool detach = false;  ///< unmount the target
  bool no_fail = false;
  bool quiet = false;  ///< do not report ignored failures

  /// Adds an option; a later one overrides. Returns false for an option of a file system.
  bool add(std::string_view option);
  bool operator==(const MountOptions&) const = default;
};

bool is_mount_option(std::string_view word);

/// Returns the options as TaskMessage::SourceFlags, without the kind. The other options have no
/// effect in a step: every mount is nosuid and nodev, and a tree includes its mounts. Later mounts
/// of the host propagate into the container (slave), and never in the other direction.
std::uint32_t source_flags_of(const MountOptions& options);

// --- enroot fstab ---

/// An fstab line in enroot-mount's format: SOURCE TARGET TYPE OPTIONS FREQ PASS, with escapes such
/// as `\040` for blanks.
struct EnrootFstabLine : MountOptions {
  std::string source;
  std::string target;                ///< path in the container's root
  std::string type;                  ///< "none" if the source is a path
  std::vector<std::string> options;  ///< as written
  std::string data;                  ///< options of the file system, separated by commas
  int pass = 0;

  bool operator==(const EnrootFstabLine&) const = default;
  [[nodiscard]] bool mounts() const { return flags != 0 || propagation == 0; }
};

/// Maximum length of a line in bytes.
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

/// Returns the lines of a file that are neither empty nor a comment, with their numbers.
std::vector<std::pair<unsigned, std::string_view>> fstab_lines(std::string_view text);

Result<std::vector<EnrootFstabLine>> parse_enroot_mounts(std::string_view text);

}  // namespace spc
