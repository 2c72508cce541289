#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// The task's user, as the host names it.
struct UserIdentity {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string name;        ///< empty if the host has no entry for this user
  std::string home = "/";  ///< "/" if unknown
  std::string shell = "/bin/sh";
  std::vector<std::string>
      group_entries;  ///< lines for a group file: the primary and the supplementary groups

  /// Queries the host's name service about the calling process. Must be called before entering a
  /// container, whose name service is code of the image. A user unknown to the host is no error.
  static UserIdentity of_this_process();
  /// Does the same. If the name service does not know the user, `job`, the user's own variables,
  /// provides name (USER, LOGNAME or SLURM_JOB_USER), HOME and SHELL: no permission may depend on
  /// them. The name of another user is not accepted.
  static UserIdentity of_job(const std::map<std::string, std::string>& job);
  /// Returns name, home and shell, one line each, for the tasks, which then need not query the name
  /// service.
  [[nodiscard]] std::string for_other_tasks() const;
  static UserIdentity from_first_task(std::string_view text);
  /// Returns the identity with --container-remap-root: root, with home /root.
  [[nodiscard]] UserIdentity as_root() const;
  /// Returns a line for a passwd file; empty for a user without a name. A home that such a line
  /// cannot contain is left out.
  [[nodiscard]] std::string passwd_entry() const;
  /// Returns a shadow line of an account without a password that does not expire.
  [[nodiscard]] std::string shadow_entry() const;
};

}  // namespace spc
