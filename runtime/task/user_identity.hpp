#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// Who the task runs as, with the names that the host knows.
struct UserIdentity {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string name;  ///< empty: the host has no entry for this user
  std::string home = "/";
  std::string shell = "/bin/sh";
  std::vector<std::string> group_entries;  ///< lines for a group file: the primary and the supplementary groups

  /// Asks the host's name service about the calling process; call it before entering a container, whose name service
  /// is the image's code. A user that the host does not know is no error.
  static UserIdentity of_this_process();
  /// Name, home and shell for the other tasks of the node, who then need not ask the name service: a line each.
  [[nodiscard]] std::string for_other_tasks() const;
  static UserIdentity from_first_task(std::string_view text);
  /// Who he is where he is root of the container: root, whose home is /root.
  [[nodiscard]] UserIdentity as_root() const;
  /// A line for a passwd file; empty for a user without a name.
  [[nodiscard]] std::string passwd_entry() const;
};

}  // namespace spc
