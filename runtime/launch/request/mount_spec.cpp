#include "launch/request/mount_spec.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/format.hpp"
#include "base/text.hpp"
#include "launch/request/mount_words.hpp"
#include "protocol/task.hpp"

namespace spc {
namespace {

constexpr std::string_view kForm = "SRC[:DST[:FLAGS]]";

Error refuse(std::string_view item, std::string_view why) {
  return Error(ErrorKind::invalid, formatted("--container-mounts: {}: {}", in_quotes(item), why));
}

bool is_path(std::string_view text) { return text.starts_with('/') || text.starts_with('.'); }

/// A word of fstab(5) and what it means here.
struct Flag {
  std::string_view name;
  std::uint32_t set = 0;  ///< of TaskMessage::SourceFlags
  std::uint32_t clear = 0;
};

// A tree is always mounted with all that is mounted in it: without, what those mounts cover would come to light. Every mount is
// nosuid and nodev, and what is mounted on the host later appears inside (slave), never the other way round:
// `shared` can mean nothing else. When a file was last read is its file system's affair, and so is the rest of the second group.
constexpr Flag kFlags[] = {
    {"ro", TaskMessage::source_read_only, 0},
    {"rw", 0, TaskMessage::source_read_only},
    {"noexec", TaskMessage::source_no_exec, 0},
    {"exec", 0, TaskMessage::source_no_exec},
    {"private", TaskMessage::source_private, 0},
    {"rprivate", TaskMessage::source_private, 0},
    {"unbindable", TaskMessage::source_private, 0},
    {"runbindable", TaskMessage::source_private, 0},
    {"slave", 0, TaskMessage::source_private},
    {"rslave", 0, TaskMessage::source_private},
    {"shared", 0, TaskMessage::source_private},
    {"rshared", 0, TaskMessage::source_private},

    {"bind"},
    {"rbind"},
    {"nosuid"},
    {"nodev"},
    {"atime"},
    {"noatime"},
    {"diratime"},
    {"nodiratime"},
    {"relatime"},
    {"norelatime"},
    {"strictatime"},
    {"nostrictatime"},
    {"lazytime"},
    {"nolazytime"},
    {"sync"},
    {"async"},
    {"dirsync"},
    {"iversion"},
    {"noiversion"},
    {"mand"},
    {"nomand"},
    {"defaults"},
    {"auto"},
    {"noauto"},
    {"user"},
    {"nouser"},
    {"users"},
    {"nousers"},
    {"owner"},
    {"noowner"},
    {"group"},
    {"nogroup"},
};

/// Flags that no mount can have here, and why.
struct Refusal {
  std::string_view name;
  std::string_view why;
};
constexpr Refusal kRefused[] = {
    {"x-move", "not supported (hint: mount it at the new path and drop the first mount with umount:PATH)"},
    {"remount", "not supported (hint: set the flags on the mount itself)"},
    {"suid", "every mount is nosuid"},
    {"dev", "every mount outside /dev is nodev"},
};

bool read_mode(std::string_view text, unsigned& mode) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  return problem == std::errc() && end == text.data() + text.size() && mode <= 01777;
}

Result<void> apply_tmpfs_flag(MountSpec& mount, std::string_view item, std::string_view flag) {
  const std::string_view value = flag.substr(flag.find('=') + 1);
  if (flag.starts_with("size=")) {
    mount.size = SPC_TRY_DURING("--container-mounts: " + in_quotes(item), MemorySize::parse(value));
    return {};
  }
  unsigned mode = 0;
  if (!read_mode(value, mode)) return refuse(item, in_quotes(value) + " is not a mode").hint("octal digits, as 0755 or 1777");
  mount.mode = mode;
  return {};
}

Result<void> apply_flag(MountSpec& mount, std::string_view item, std::string_view name) {
  const bool is_tmpfs = mount.kind == MountSpec::Kind::tmpfs;
  if (const auto* flag = std::find_if(std::begin(kFlags), std::end(kFlags), [&](const Flag& one) { return one.name == name; });
      flag != std::end(kFlags)) {
    mount.flags = (mount.flags & ~flag->clear) | flag->set;
  } else if (name == "nofail") {
    mount.optional = true;
  } else if (name == "silent" || name == "loud") {
    mount.silent = name == "silent";
  } else if (name == "x-create=auto") {
    mount.create = MountSpec::Create::as_source;
  } else if (name == "x-create=dir" || name == "x-create=file") {
    mount.create = name == "x-create=dir" ? MountSpec::Create::directory : MountSpec::Create::file;
  } else if (name == "x-detach") {
    mount.kind = MountSpec::Kind::removal;  // of enroot: then nothing is mounted
  } else if (name == "sqsh" && mount.kind == MountSpec::Kind::bind) {
    mount.kind = MountSpec::Kind::squashfs;
  } else if (is_tmpfs && (name.starts_with("size=") || name.starts_with("mode="))) {
    return apply_tmpfs_flag(mount, item, name);
  } else {
    for (const Refusal& refusal : kRefused) {
      if (refusal.name == name) return refuse(item, formatted("{}: {}", name, refusal.why));
    }
    return refuse(item, "unknown flag " + in_quotes(name))
        .hint(is_tmpfs ? "flags, joined by +: size=, mode=, ro, noexec" : "flags, joined by +: ro, rw, noexec, nofail, sqsh");
  }
  return {};
}

Result<void> apply_flags(MountSpec& mount, std::string_view item, std::string_view text) {
  for (const std::string_view name : split(text, '+')) SPC_TRY(apply_flag(mount, item, name));
  if (mount.create == MountSpec::Create::file &&
      (mount.kind == MountSpec::Kind::tmpfs || mount.kind == MountSpec::Kind::squashfs)) {
    return refuse(item, "x-create=file: the target must be a directory");
  }
  return {};
}

std::string inside(std::string_view target) {
  while (target.starts_with("./")) target.remove_prefix(2);
  if (target == ".") target = "";
  return target.starts_with('/') ? std::string(target) : "/" + std::string(target);
}

/// True for `/`, however it is written: `//`, `/.`, `/x/..`.
bool is_root(std::string_view target) {
  std::size_t depth = 0;
  for (const std::string_view part : split(target, '/')) {
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      ++depth;
    } else if (depth > 0) {
      --depth;
    }
  }
  return depth == 0;
}

MountSpec::Kind kind_of(const MountWord& source) {
  if (source.quoted) return MountSpec::Kind::bind;
  if (source.text == "tmpfs") return MountSpec::Kind::tmpfs;
  return source.text == "umount" ? MountSpec::Kind::removal : MountSpec::Kind::bind;
}

/// Apptainer's `SRC:ro`: a target begins with / or a dot, so it is none.
bool is_flag_for_target(const MountWord& word) { return !word.quoted && (word.text == "ro" || word.text == "rw"); }

Result<MountSpec> parse_mount(const MountWords& words) {
  const auto& parts = words.parts;
  const auto item = words.item;
  const MountWord& source = parts[0];
  if (source.text.empty() || parts.size() > 3 || (parts.size() > 1 && parts[1].text.empty())) {
    return refuse(item, "invalid format").hint(kForm);
  }
  MountSpec mount{.kind = kind_of(source), .shown_as = std::string(item)};
  const bool is_named = mount.kind != MountSpec::Kind::bind;
  if (is_named && parts.size() == 1) return refuse(item, "invalid format").hint(source.text + ":DST[:FLAGS]");
  const bool is_short = parts.size() == 2 && is_flag_for_target(parts[1]);
  if (!is_named) mount.source = source.text;

  const std::string& target = parts.size() > 1 && !is_short ? parts[1].text : source.text;
  if (parts.size() == 3) SPC_TRY(apply_flags(mount, item, parts[2].text));
  if (is_short) SPC_TRY(apply_flags(mount, item, parts[1].text));
  // A file of data may be named as it is: nothing else can be meant.
  if (!is_named && !is_path(source.text) && mount.kind != MountSpec::Kind::squashfs) {
    return refuse(item, "mount source must be a relative path (beginning with .), an absolute path, \"tmpfs\" or \"umount\"");
  }
  if (!is_path(target)) return refuse(item, "mount target must be a relative path (beginning with .) or an absolute path");
  if (mount.kind == MountSpec::Kind::removal) mount.source.clear();
  mount.target = inside(target);
  if (is_root(mount.target)) {
    return refuse(item, mount.kind == MountSpec::Kind::removal ? "cannot unmount the container's root"
                                                               : "cannot mount on the container's root");
  }
  return mount;
}

}  // namespace

Error too_many_mounts() {
  return {ErrorKind::invalid, formatted("--container-mounts: more than {} mounts", kMaxMounts)};
}

Result<std::vector<MountSpec>> parse_mounts(std::string_view text) {
  std::vector<MountSpec> mounts;
  if (text.empty()) return Error(ErrorKind::invalid, "--container-mounts: argument required");
  for (;;) {
    if (mounts.size() == kMaxMounts) return too_many_mounts();
    const auto words = SPC_TRY(take_mount(text));
    auto mount = SPC_TRY(parse_mount(words));
    if (std::find(mounts.begin(), mounts.end(), mount) == mounts.end()) mounts.push_back(std::move(mount));
    if (words.last) return mounts;
  }
}

}  // namespace spc
