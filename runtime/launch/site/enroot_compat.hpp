#pragma once

#include "base/log.hpp"
#include "base/result.hpp"
#include "launch/policy/site.hpp"
#include "launch/site/enroot_text.hpp"

namespace spc {

/// Where `enroot_compat` is set: adds what /etc/enroot and the user's own directory of enroot (ENROOT_CONFIG_PATH, by default
/// ~/.config/enroot) say, as if config.toml said it. In the task, as the user, on the host:
///
///   enroot.conf, enroot.conf.d/*.conf   ENROOT_ROOTFS_WRITABLE, _REMAP_ROOT, _MOUNT_HOME, _UNSHARE_*: keys writable, remap_root,
///                                       mount_home, unshare; the job's variables of these names count more, as for enroot
///   mounts.d/*.fstab                    keys enroot_mounts, enroot_mounts_of_user: `FILE, line N`, a tab, and the mount as for
///                                       --container-mounts
///   environ.d/*.env                     the key env
///
/// Files below /etc/enroot must be root's, as config.toml must; `job` is what ${NAME} in all of them stands for. What means
/// nothing here is said to `log`; nullptr: to nobody.
Result<void> add_enroot_files(Site& site, const Variables& job, Log* log);

/// ENROOT_* as enroot.conf and the job's variables set them; values that take a shell are left out.
Result<Variables> enroot_settings(const Variables& job);
/// Whether such a value means yes.
bool is_on_for_enroot(std::string_view value);

/// ENROOT_CONFIG_PATH, or where it is by default; empty: nowhere.
std::string enroot_directory_of_user(const Variables& settings, const Variables& job);

}  // namespace spc
