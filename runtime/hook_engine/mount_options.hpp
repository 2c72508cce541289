#pragma once

#include <cstdint>
#include <string_view>

namespace spc {

/// What options of a mount say together: those of fstab that suit every file system (mount(8)), and
/// enroot's own. The same words are the flags of --container-mounts.
struct MountOptions {
  unsigned long flags = 0;  ///< MS_* without propagation; 0 with a propagation: nothing is mounted
  unsigned long propagation = 0;  ///< MS_PRIVATE and so on, with MS_REC
  enum class Create { no, file, directory, as_source } create = Create::no;
  bool detach = false;  ///< unmount the target
  bool no_fail = false;
  bool quiet = false;  ///< do not report ignored failures

  /// Adds an option; the later one counts. False: it is one of a file system.
  bool add(std::string_view option);
  bool operator==(const MountOptions&) const = default;
};

bool is_mount_option(std::string_view word);

/// As TaskMessage::SourceFlags, without the kind. The other options have no effect in a step: every
/// mount is nosuid and nodev, a tree is mounted with all that is mounted in it, what is mounted on
/// the host later appears inside (slave), and never the other way round.
std::uint32_t source_flags_of(const MountOptions& options);

}  // namespace spc
