#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"
#include "task/root/mount_target.hpp"
#include "task/root/removal.hpp"

namespace spc {

/// A source sent to the agent, and its mount target.
struct MountTarget {
  std::string target;  ///< path in the container; links are followed there
  bool directory = false;
  std::string shown_as;          ///< as given by the user, for errors
  std::optional<unsigned> mode;  ///< of its root directory, which the user owns; empty: unchanged
  bool wanted = true;            ///< false: its source is dropped
  bool optional = false;  ///< nobody asked for it: left out where the user may not make the target
  bool by_user =
      false;  ///< no link of the image may lead it to where it covers /proc, /sys or /dev
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

/// What the leader adds to the container's root before the tasks enter.
struct RootSetup {
  std::vector<MountTarget> targets;  ///< in the order their sources were sent
  std::size_t dev_targets =
      0;  ///< the first of them: a /dev in place of the host's, and what is in it
  std::vector<Removal> removals;  ///< `after` counts the targets
  bool container_runs = false;    ///< it has the host's trees; only the mount targets are added
  bool has_host_trees = false;    ///< attach_host_trees() was called
  std::vector<std::string> directories;  ///< created if missing, in order
  std::string passwd_entry;              ///< lines without newline; empty: keep the image's file
  std::string shadow_entry;              ///< only where the image has the file
  std::vector<std::string> group_entries;
  bool has_strange_groups =
      false;  ///< groups of the user that a user namespace shows as the kernel's overflow ID
  std::uint32_t namespaces =
      0;  ///< NamespaceBits of the container; with own_user, what root needs is created
  std::vector<std::string> system_users;  ///< passwd lines of users that the image lacks
  std::vector<TextFile> files;            ///< created or replaced
  std::vector<Link> links;                ///< created or replaced, except directories
  std::string
      for_other_tasks;  ///< passed on to them unchanged; at most what TaskMessage::text holds
  std::function<void(const std::string& paths)>
      not_ours;  ///< told what stays as it is; may be empty
  std::function<Result<void>()>
      before_others;       ///< called after all mounts, before the tasks enter; may be empty
  bool asks_host = false;  ///< TaskMessage::asks_host
};

/// Sets up the root file system that the calling process is in, as the user and without privilege:
/// creates what is missing, writes passwd and group, and opens each mount target for the builder at
/// the other end of `builder`. In an image directory of another owner, what cannot be written stays
/// as it is, unless it was asked for.
Result<void> set_up_root(const RootSetup& root, int builder);

/// A warning for RootSetup::not_ours.
std::string not_ours(const std::string& paths);

/// The same, if the calling process can mount itself.
Result<void> set_up_root(const RootSetup& root, const AttachSource& attach);

/// The first step of the set-up: mounts /proc, /sys, /dev, /tmp and so on where `open_directory`
/// finds or creates them.
using OpenDirectory = std::function<Result<UniqueFd>(const std::string& path)>;
Result<void> attach_host_trees(const RootSetup& root, const OpenDirectory& open_directory,
                               const AttachSource& attach);
/// `text`, a passwd or group file, without entries of the same name or ID as `entry`, plus `entry`.
std::string with_entry(std::string_view text, const std::string& entry);

/// `text` plus `entry`, unless it has one of that name.
std::string with_missing_entry(std::string text, const std::string& entry);

}  // namespace spc
