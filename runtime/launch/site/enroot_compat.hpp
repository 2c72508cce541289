#pragma once

#include "base/log.hpp"
#include "base/result.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/site/enroot_text.hpp"

namespace spc {

/// With `enroot_compat`: adds the settings of /etc/enroot and of the user's enroot directory
/// (ENROOT_CONFIG_PATH, by default
/// ~/.config/enroot), as if they were in config.toml. In the task, as the user, on the host:
///
///   enroot.conf, enroot.conf.d/*.conf   ENROOT_ROOTFS_WRITABLE, _REMAP_ROOT, _MOUNT_HOME,
///   _UNSHARE_*: keys writable, remap_root,
///                                       mount_home, unshare; the job's variables of these names
///                                       take precedence
///   mounts.d/*.fstab                    keys enroot_mounts, enroot_mounts_of_user: `FILE, line N`,
///   a tab, and the mount as for
///                                       --container-mounts
///   environ.d/*.env                     the key env
///
/// What of it comes from the user is noted in options_of_user: a site can switch it off.
/// Files below /etc/enroot must be owned by root, like config.toml; `job` replaces ${NAME} in all
/// of them. Unsupported settings are reported to `log`, unless it is nullptr.
Result<void> add_enroot_files(SitePolicy& site, const Variables& job, Log* log);

/// ENROOT_* from enroot.conf and the job's variables; values that need a shell are skipped.
Result<Variables> enroot_settings(const Variables& job);
/// Whether such a value means yes.
bool is_on_for_enroot(std::string_view value);

/// ENROOT_CONFIG_PATH, or its default; empty: none.
std::string enroot_directory_of_user(const Variables& settings, const Variables& job);

}  // namespace spc
