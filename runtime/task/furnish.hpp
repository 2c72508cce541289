#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"
#include "task/removal.hpp"

namespace spc {

/// A source that was sent to the agent and the place inside where it shall appear.
struct Placement {
  std::string target;  ///< path inside the container; links are followed there
  bool directory = false;
  std::string shown_as;          ///< what the user typed, for errors
  std::optional<unsigned> mode;  ///< of its root directory, which is the user's; empty: as it is
  bool wanted = true;            ///< false: what was sent for it is dropped
};

struct TextFile {
  std::string path;
  std::string text;
  mode_t mode = 0644;
};

struct Link {
  std::string path;
  std::string target;  ///< as it stands in the link
};

/// What the first task adds to the container's root before the others come in.
struct Furniture {
  std::vector<Placement> placements;     ///< in the order their sources were sent
  std::vector<Removal> removals;         ///< `after` counts the placements
  bool container_runs = false;           ///< it has what comes from the host; only the placements are added
  bool has_host_trees = false;           ///< attach_host_trees() has been called before
  std::vector<std::string> directories;  ///< made if absent, in order
  std::string passwd_entry;              ///< lines without the line end; empty: the image's file stays
  std::vector<std::string> group_entries;
  std::uint32_t namespaces = 0;                 ///< NamespaceBits of the container; with own_user, what root needs is made
  std::vector<std::string> system_users;        ///< lines for passwd of users that the image does not have
  std::vector<TextFile> files;                  ///< written anew
  std::vector<Link> links;                      ///< made anew; a directory in the way stays
  std::string for_other_tasks;                  ///< passed on to them as it is; at most what TaskMessage::text holds
  std::function<Result<void>()> before_others;  ///< called when everything is mounted, before others are let in; may be empty
  int notes = -1;                               ///< a descriptor that goes to them, too; -1: none
};

/// Furnishes the root in which the calling process already lives, as the user and without privilege: makes what is
/// missing, writes passwd and group, and opens each mount target for the builder at the other end of `builder`.
Result<void> furnish(const Furniture& furniture, int builder);

/// Mounts source `index`, or HostTree `index` less the count of placements, at `target`; `shown_as` is for errors.
using AttachSource = std::function<Result<void>(std::uint32_t index, const UniqueFd& target, const std::string& shown_as)>;
/// The same, where the calling process can mount by itself.
Result<void> furnish(const Furniture& furniture, const AttachSource& attach);

/// What furnish() does first: mounts /proc, /sys, /dev, /tmp and the like where `open_directory` finds or makes these.
using OpenDirectory = std::function<Result<UniqueFd>(const std::string& path)>;
Result<void> attach_host_trees(const Furniture& furniture, const OpenDirectory& open_directory, const AttachSource& attach);
/// The AttachSource of a step.
AttachSource attach_by(int builder);

/// Opens a path inside the container the calling process lives in. Links of the image are followed, those of /proc that
/// lead to a process's files are not: they would lead out (CVE-2024-21626). errno tells why it is empty.
UniqueFd open_inside(const char* path, int flags);

/// Makes (with parents) what is absent and returns an O_PATH descriptor of it. A dangling link is completed at the place
/// it points to.
Result<UniqueFd> open_target(const std::string& path, bool directory);

/// `text`, a passwd or group file, without the entries that have the name or the id of `entry`, and `entry` at its end.
std::string with_entry(std::string_view text, const std::string& entry);

/// `text` with `entry` at its end, unless it has one of that name.
std::string with_missing_entry(std::string text, const std::string& entry);

}  // namespace spc
