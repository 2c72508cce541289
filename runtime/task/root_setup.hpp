#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"

namespace spc {

// --- mount target ---

/// Opens a path in the container of the calling process. Follows links in the image, but not /proc
/// links to files of a process: they would lead out of it (CVE-2024-21626). Empty with errno on
/// failure.
UniqueFd open_inside(const char* path, int flags);

/// Creates the target (with parents) if it is missing and returns an O_PATH descriptor of it. Links
/// in any component are followed inside the root, and what they lead to is created.
Result<UniqueFd> open_target(const std::string& path, bool directory);

/// A performer of mounts.
struct AttachSource {
  /// Mounts source `index`, or HostTree `index` minus the number of mount targets, at `target`;
  /// `step` begins errors. The mount may still be in progress on return.
  std::function<Result<void>(std::uint32_t index, const UniqueFd& target, const std::string& step)>
      begin;
  /// Waits for all mounts in progress. Empty if every mount is complete on return.
  std::function<Result<void>()> settle;
};

/// Returns the AttachSource of a step.
AttachSource attach_by(int builder);

/// Opens targets while mounts are in progress. A target that may be inside such a mount is opened
/// only when the mount is complete.
class MountTargets {
 public:
  explicit MountTargets(const AttachSource& attach) : attach_(attach) {}

  /// Does the same as open_target(), for the mount that begins next. ErrorKind::invalid for the
  /// container's root. Every mount target is opened through this function.
  Result<UniqueFd> open(const std::string& path, bool directory);
  /// Waits for all mounts that have begun.
  Result<void> settle();

 private:
  const AttachSource& attach_;
  std::vector<std::string> begun_;
};

// --- removal ---

/// A path in the container where mounts are dropped.
struct Removal {
  std::string target;
  std::size_t after = 0;  ///< number of mounts before it
  bool optional = false;  ///< no error if there is no mount
  std::string shown_as;   ///< as given by the user, for errors
};

/// Returns which of the mounts at `targets`, in this order, are made: a removal drops the last
/// preceding mount at its target, and everything below it. `resolve` makes a path comparable.
/// Mounts are never unmounted: dropping needs no privilege, and cannot uncover files that the host
/// hides under its own mounts. An Error if a removal has no mount to drop.
Result<std::vector<bool>> mounts_to_make(
    const std::vector<std::string>& targets, const std::vector<Removal>& removals,
    const std::function<std::string(const std::string&)>& resolve);

/// Returns the path without links, dots and empty components, as open_target() follows them. Must
/// be called before any mount, so that no /proc link interferes.
std::string without_links(const std::string& path);

// --- root setup ---

/// A mount of the container: a source on the host, opened as the user, or a tmpfs, and its target.
struct Mount {
  UniqueFd source;           ///< empty for a tmpfs
  std::uint32_t flags = 0;   ///< TaskMessage::SourceFlags
  std::uint64_t size = 0;    ///< tmpfs: bytes; 0: the size limit of the writable layer
  std::uint64_t inodes = 0;  ///< tmpfs: limit of files; 0: the kernel's default
  std::string asked_by;      ///< an option, a key of config.toml, or "every container"
  std::string target;        ///< path in the container; links are followed there
  bool directory = false;
  std::string shown_as;          ///< as given by the user, for errors
  std::optional<unsigned> mode;  ///< of the mount's root directory, which the user owns; empty:
                                 ///< unchanged
  bool wanted = true;            ///< false: its source is dropped
  bool optional = false;  ///< not requested by the user: left out, with a warning, where the image
                          ///< has no use for it
  bool by_user =
      false;  ///< refused if a link of the image leads it to where it covers /proc, /sys or /dev
};

struct TextFile {
  std::string path;
  std::string text;
  mode_t mode = 0644;
};

/// A symbolic link.
struct Link {
  std::string path;
  std::string target;  ///< as stored in the link
};

/// The leader's additions to the container's root before the tasks enter.
struct RootSetup {
  std::vector<Mount> mounts;      ///< in the order in which their sources are sent to the builder
  std::size_t dev_targets = 0;    ///< number of mounts at the beginning that are a /dev in place of
                                  ///< the host's, with its content
  std::vector<Removal> removals;  ///< `after` counts the mounts
  bool container_runs = false;    ///< the container has the host's trees; only the mounts are added
  bool has_host_trees = false;    ///< attach_host_trees() was called
  std::vector<std::string> directories;  ///< created if missing, in order
  std::string passwd_entry;              ///< lines without newline; empty: keep the image's file
  std::string shadow_entry;              ///< only where the image has the file
  std::vector<std::string> group_entries;
  bool has_strange_groups =
      false;  ///< groups of the user that a user namespace shows as the kernel's overflow ID
  std::uint32_t namespaces = 0;  ///< NamespaceBits of the container; with own_user, accounts and
                                 ///< directories that root needs are created
  std::vector<std::string> system_users;  ///< passwd lines of users that the image lacks
  std::vector<TextFile> files;            ///< created or replaced
  std::vector<Link> links;                ///< created or replaced, except directories
};

/// Sets up the root file system of the calling process, as the user and without privilege: creates
/// missing files, writes passwd and group, and opens each mount target for `attach`. Leaves out
/// additions that were not requested and do not fit the image, such as a file in a directory of
/// another owner, and returns warnings about them.
Result<std::vector<std::string>> set_up_root(const RootSetup& root, const AttachSource& attach);

/// The first step of the set-up: mounts /proc, /sys, /dev, /tmp and so on where `open_directory`
/// finds or creates them.
using OpenDirectory = std::function<Result<UniqueFd>(const std::string& path)>;
Result<void> attach_host_trees(const RootSetup& root, const OpenDirectory& open_directory,
                               const AttachSource& attach);
/// Returns `text`, a passwd or group file, without entries of the same name or ID as `entry`, plus
/// `entry`.
std::string with_entry(std::string_view text, const std::string& entry);

/// Returns `text` plus `entry`, unless it has an entry of that name.
std::string with_missing_entry(std::string text, const std::string& entry);

}  // namespace spc
