#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// The task's user, with the host's names.
struct UserIdentity {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string name;        ///< empty: the host has no entry for this user
  std::string home = "/";  ///< "/": none is known
  std::string shell = "/bin/sh";
  std::vector<std::string>
      group_entries;  ///< lines for a group file: the primary and the supplementary groups

  /// Queries the host's name service about the calling process; call it before entering a
  /// container, whose name service is code of the image. A user unknown to the host is no error.
  static UserIdentity of_this_process();
  /// The same. For a user whom the name service does not know, `job`, the user's own variables, has
  /// name (USER, LOGNAME or SLURM_JOB_USER), HOME and SHELL: nothing that rights may depend on. A
  /// name of another user is not taken.
  static UserIdentity of_job(const std::map<std::string, std::string>& job);
  /// Name, home and shell for the tasks, which then need not query the name service: one line each.
  [[nodiscard]] std::string for_other_tasks() const;
  static UserIdentity from_first_task(std::string_view text);
  /// The identity with --container-remap-root: root, with home /root.
  [[nodiscard]] UserIdentity as_root() const;
  /// A line for a passwd file; empty for a user without a name. A home that such a line cannot have
  /// is left out.
  [[nodiscard]] std::string passwd_entry() const;
  /// Of an account without a password that does not expire.
  [[nodiscard]] std::string shadow_entry() const;
};

}  // namespace spc
