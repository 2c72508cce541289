#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "config/config.hpp"

namespace spc {

// --- enroot text ---

/// Parsers for enroot's configuration files; add_enroot_files() lists their paths.

using Variables = std::map<std::string, std::string>;

/// Returns `text` with each ${NAME} replaced by that variable, or by an empty text if it is unset.
/// Keeps other shell syntax.
std::string with_variables(std::string_view text, const Variables& variables);

/// Returns the lines of /etc/environment as enroot reads them: without comments, lines that are not
/// assignments, and ENROOT_*, and without one pair of quotes around the value.
std::vector<std::string> parse_environment_file(std::string_view text);

/// Parses an environ.d/*.env: NAME=VALUE lines with ${NAME} in the values, without one pair of
/// quotes around a value. Ignores comments, lines that are not assignments, and ENROOT_*.
Variables parse_environ(std::string_view text, const Variables& variables);

/// The contents of enroot.conf: `NAME VALUE` lines. A value can contain ${NAME} and one pair of
/// quotes.
struct EnrootConf {
  Variables values;
  std::vector<std::string>
      needs_shell;  ///< names whose values need a shell, which enroot would run; ignored
};
EnrootConf parse_enroot_conf(std::string_view text, const Variables& variables);

/// A line of a mounts.d/*.fstab, converted to the syntax of --container-mounts
/// (request/mount_spec.hpp), with ${NAME} replaced. Missing fields default as in enroot. Default
/// mounts of every container (/proc, /sys, /dev, /tmp, host name files) are skipped.
struct EnrootMount {
  unsigned line = 0;
  std::string text;  ///< for parse_mounts()
  /// Why this mount is impossible, with `text` as the line; empty if it is possible.
  std::string problem;
};
std::vector<EnrootMount> parse_enroot_fstab(std::string_view text, const Variables& variables);

// --- enroot compat ---

/// With `enroot_compat`: adds the settings of /etc/enroot and of the user's enroot directory
/// (ENROOT_CONFIG_PATH, by default ~/.config/enroot) as if they were in config.toml. Call it in the
/// task, as the user, on the host.
///
///   enroot.conf, enroot.conf.d/*.conf   ENROOT_ROOTFS_WRITABLE, _REMAP_ROOT, _MOUNT_HOME,
///                                       _UNSHARE_*: keys writable, remap_root, mount_home,
///                                       unshare; the job's variables of these names take
///                                       precedence
///   mounts.d/*.fstab                    keys enroot_mounts, enroot_mounts_of_user:
///                                       `FILE, line N`, a tab, and the mount as for
///                                       --container-mounts
///   environ.d/*.env                     the key env
///
/// Settings from the user's files are listed in options_of_user: a site can disable them. Files
/// below /etc/enroot must be owned by root, like config.toml. `job` replaces ${NAME} in all files.
/// Reports unsupported settings to `log`, unless it is nullptr.
Result<void> add_enroot_files(SitePolicy& site, const Variables& job, Log* log);

/// Returns ENROOT_* from enroot.conf and the job's variables. Skips values that need a shell.
Result<Variables> enroot_settings(const Variables& job);
/// Returns whether the value means yes for enroot.
bool is_on_for_enroot(std::string_view value);

/// Returns ENROOT_CONFIG_PATH, or its default; empty if there is none.
std::string enroot_directory_of_user(const Variables& settings, const Variables& job);

}  // namespace spc
