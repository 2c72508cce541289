#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// The languages of enroot's configuration, as text: launch/enroot_compat.hpp says where the files are.

using Variables = std::map<std::string, std::string>;

/// `text` with each ${NAME} replaced by that variable, or by nothing. What else looks like a shell's is left as it is.
std::string with_variables(std::string_view text, const Variables& variables);

/// The lines of /etc/environment as enroot reads them: comments, lines that are no assignment and ENROOT_* are left out,
/// and one pair of quotes round the value.
std::vector<std::string> parse_environment_file(std::string_view text);

/// An environ.d/*.env: NAME=VALUE lines with ${NAME} in the values, one pair of quotes around a value dropped. Comments, lines
/// that are no assignments and ENROOT_* count for nothing.
Variables parse_environ(std::string_view text, const Variables& variables);

/// enroot.conf: `NAME VALUE` lines. A value may have ${NAME} and one pair of quotes.
struct EnrootConf {
  Variables values;
  std::vector<std::string> needs_shell;  ///< names whose value enroot would have run through a shell: they do not count
};
EnrootConf parse_enroot_conf(std::string_view text, const Variables& variables);

/// A mounts.d/*.fstab: each line in the grammar of --container-mounts (launch/mount_spec.hpp), with ${NAME} replaced. Missing
/// fields are guessed as enroot does. What every container has anyway (/proc, /sys, /dev, /tmp, names of hosts) is left out.
struct EnrootMount {
  unsigned line = 0;
  std::string text;     ///< for parse_mounts()
  std::string problem;  ///< not empty: why there is no such mount here; `text` is the line
};
std::vector<EnrootMount> parse_enroot_fstab(std::string_view text, const Variables& variables);

}  // namespace spc
