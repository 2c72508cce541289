#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// Parsers for enroot's configuration files; launch/site/enroot_compat.hpp says where they are.

using Variables = std::map<std::string, std::string>;

/// `text` with each ${NAME} replaced by that variable, or by nothing. Other shell syntax is kept.
std::string with_variables(std::string_view text, const Variables& variables);

/// The lines of /etc/environment as read by enroot: without comments, lines that are not
/// assignments, and ENROOT_*, and without one pair of quotes around the value.
std::vector<std::string> parse_environment_file(std::string_view text);

/// An environ.d/*.env: NAME=VALUE lines with ${NAME} in the values, without one pair of quotes
/// around a value. Comments, lines that are not assignments, and ENROOT_* are ignored.
Variables parse_environ(std::string_view text, const Variables& variables);

/// enroot.conf: `NAME VALUE` lines. A value can contain ${NAME} and one pair of quotes.
struct EnrootConf {
  Variables values;
  std::vector<std::string>
      needs_shell;  ///< names whose values need a shell, as enroot would run: ignored
};
EnrootConf parse_enroot_conf(std::string_view text, const Variables& variables);

/// A mounts.d/*.fstab: each line in the syntax of --container-mounts
/// (launch/request/mount_spec.hpp), with ${NAME} replaced. Missing fields default as in enroot.
/// Default mounts of every container (/proc, /sys, /dev, /tmp, host name files) are skipped.
struct EnrootMount {
  unsigned line = 0;
  std::string text;     ///< for parse_mounts()
  std::string problem;  ///< not empty: why this mount is not possible; `text` is the line
};
std::vector<EnrootMount> parse_enroot_fstab(std::string_view text, const Variables& variables);

}  // namespace spc
