#include "hook_engine/mount_options.hpp"

#include <sys/mount.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "protocol/task.hpp"

namespace spc {
namespace {

struct Option {
  std::string_view name;
  unsigned long set = 0;
  unsigned long clear = 0;
};

// mount(8), "filesystem-independent mount options". The last ones say nothing to the kernel.
constexpr Option kFlags[] = {{"async", 0, MS_SYNCHRONOUS},
                             {"atime", 0, MS_NOATIME},
                             {"bind", MS_BIND},
                             {"dev", 0, MS_NODEV},
                             {"diratime", 0, MS_NODIRATIME},
                             {"dirsync", MS_DIRSYNC},
                             {"exec", 0, MS_NOEXEC},
                             {"iversion", MS_I_VERSION},
                             {"lazytime", MS_LAZYTIME},
                             {"mand", MS_MANDLOCK},
                             {"noatime", MS_NOATIME},
                             {"nodev", MS_NODEV},
                             {"nodiratime", MS_NODIRATIME},
                             {"noexec", MS_NOEXEC},
                             {"noiversion", 0, MS_I_VERSION},
                             {"nolazytime", 0, MS_LAZYTIME},
                             {"nomand", 0, MS_MANDLOCK},
                             {"norelatime", 0, MS_RELATIME},
                             {"nostrictatime", 0, MS_STRICTATIME},
                             {"nosuid", MS_NOSUID},
                             {"nosymfollow", 256},
                             {"rbind", MS_BIND | MS_REC},
                             {"relatime", MS_RELATIME},
                             {"remount", MS_REMOUNT},
                             {"ro", MS_RDONLY},
                             {"rw", 0, MS_RDONLY},
                             {"strictatime", MS_STRICTATIME},
                             {"suid", 0, MS_NOSUID},
                             {"symfollow", 0, 256},
                             {"sync", MS_SYNCHRONOUS},
                             {"x-move", MS_MOVE},
                             {"_netdev"},
                             {"auto"},
                             {"defaults"},
                             {"group"},
                             {"noauto"},
                             {"nogroup"},
                             {"noowner"},
                             {"nouser"},
                             {"nousers"},
                             {"owner"},
                             {"user"},
                             {"users"}};

constexpr Option kPropagation[] = {
    {"private", MS_PRIVATE},       {"rprivate", MS_PRIVATE | MS_REC},
    {"shared", MS_SHARED},         {"rshared", MS_SHARED | MS_REC},
    {"slave", MS_SLAVE},           {"rslave", MS_SLAVE | MS_REC},
    {"unbindable", MS_UNBINDABLE}, {"runbindable", MS_UNBINDABLE | MS_REC}};

const Option* option_in(const auto& options, std::string_view name) {
  const auto* found = std::ranges::find(options, name, &Option::name);
  return found == std::end(options) ? nullptr : found;
}

}  // namespace

bool MountOptions::add(std::string_view option) {
  if (const Option* flag = option_in(kFlags, option)) {
    flags = (flags & ~flag->clear) | flag->set;
  } else if (const Option* one = option_in(kPropagation, option)) {
    propagation = one->set;
  } else if (option == "x-create=file") {
    create = Create::file;
  } else if (option == "x-create=dir") {
    create = Create::directory;
  } else if (option == "x-create=auto") {
    create = Create::as_source;
  } else if (option == "x-detach") {
    detach = true;
  } else if (option == "nofail") {
    no_fail = true;
  } else if (option == "silent" || option == "loud") {
    quiet = option == "silent";
  } else {
    return false;
  }
  return true;
}

bool is_mount_option(std::string_view word) { return MountOptions().add(word); }

std::uint32_t source_flags_of(const MountOptions& options) {
  std::uint32_t flags = 0;
  if ((options.flags & MS_RDONLY) != 0) flags |= TaskMessage::source_read_only;
  if ((options.flags & MS_NOEXEC) != 0) flags |= TaskMessage::source_no_exec;
  if ((options.propagation & MS_PRIVATE) != 0) flags |= TaskMessage::source_private;
  if ((options.propagation & MS_UNBINDABLE) != 0) flags |= TaskMessage::source_unbindable;
  return flags;
}

}  // namespace spc
