#include "launch/request/mount_spec.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>

#include "base/format.hpp"
#include "base/text.hpp"
#include "hook_engine/mount_options.hpp"
#include "launch/request/mount_words.hpp"
#include "protocol/task.hpp"

namespace spc {
namespace {

constexpr std::string_view kForm = "SRC[:DST[:FLAGS]]";

Error refuse(std::string_view item, std::string_view why) {
  return Error(ErrorKind::invalid, formatted("--container-mounts: {}: {}", in_quotes(item), why));
}

bool is_path(std::string_view text) { return text.starts_with('/') || text.starts_with('.'); }

/// Flags that no mount can have here, and why.
struct Refusal {
  std::string_view name;
  std::string_view why;
};
constexpr Refusal kRefused[] = {
    {"x-move",
     "not supported (hint: mount it at the new path and drop the first mount with umount:PATH)"},
    {"remount", "not supported (hint: set the flags on the mount itself)"},
    {"suid", "every mount is nosuid"},
    {"dev", "every mount outside /dev is nodev"},
    {"nosymfollow", "not supported"},
};

bool read_mode(std::string_view text, unsigned& mode) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  return problem == std::errc() && end == text.data() + text.size() && mode <= 01777;
}

struct HugeWord {
  std::string_view word;
  std::uint32_t flag;
};
constexpr HugeWord kHuge[] = {{"never", TaskMessage::source_huge_never},
                              {"always", TaskMessage::source_huge_always},
                              {"within_size", TaskMessage::source_huge_within_size},
                              {"advise", TaskMessage::source_huge_advise}};

bool read_count(std::string_view text, std::uint64_t& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size();
}

/// A tmpfs is the user's: of another owner it cannot be. 0 is the user, too, who is root in a
/// container with remapped root.
Result<void> check_owner(std::string_view item, std::string_view flag, std::string_view value) {
  std::uint64_t number = 0;
  const std::uint64_t own = flag.starts_with("uid=") ? ::geteuid() : ::getegid();
  if (read_count(value, number) && (number == own || number == 0)) return {};
  return refuse(item, formatted("{}: a tmpfs is its user's", flag));
}

Result<void> apply_tmpfs_flag(MountSpec& mount, std::string_view item, std::string_view flag) {
  const std::string_view value = flag.substr(flag.find('=') + 1);
  if (flag.starts_with("size=")) {
    mount.size = SPC_TRY_DURING("--container-mounts: " + in_quotes(item), MemorySize::parse(value));
    return {};
  }
  if (flag.starts_with("uid=") || flag.starts_with("gid=")) return check_owner(item, flag, value);
  if (flag.starts_with("nr_inodes=")) {
    if (read_count(value, mount.inodes) && mount.inodes > 0) return {};
    return refuse(item, in_quotes(value) + " is not a number of files");
  }
  if (flag.starts_with("huge=")) {
    const auto* word = std::ranges::find(kHuge, value, &HugeWord::word);
    if (word == std::end(kHuge))
      return refuse(item, formatted("{}: unknown", flag))
          .hint("never, always, within_size or advise");
    mount.flags = word->flag;
    return {};
  }
  unsigned mode = 0;
  if (!read_mode(value, mode))
    return refuse(item, in_quotes(value) + " is not a mode").hint("octal digits, as 0755 or 1777");
  mount.mode = mode;
  return {};
}

/// What is no option of fstab, or none that is possible here.
Result<void> apply_own_flag(MountSpec& mount, std::string_view item, std::string_view name) {
  const bool is_tmpfs = mount.kind == MountSpec::Kind::tmpfs;
  if (name == "sqsh" && mount.kind == MountSpec::Kind::bind) {
    mount.kind = MountSpec::Kind::squashfs;
    return {};
  }
  constexpr std::array<std::string_view, 6> kOfTmpfs{
      "size=", "mode=", "uid=", "gid=", "nr_inodes=", "huge="};
  const auto is_begin = [&](std::string_view begin) { return name.starts_with(begin); };
  if (is_tmpfs && std::ranges::any_of(kOfTmpfs, is_begin))
    return apply_tmpfs_flag(mount, item, name);
  return refuse(item, "unknown flag " + in_quotes(name))
      .hint(is_tmpfs ? "flags, joined by +: size=, mode=, ro, noexec"
                     : "flags, joined by +: ro, rw, noexec, nofail, sqsh");
}

MountSpec::Create create_of(MountOptions::Create create) {
  if (create == MountOptions::Create::file) return MountSpec::Create::file;
  return create == MountOptions::Create::directory ? MountSpec::Create::directory
                                                   : MountSpec::Create::as_source;
}

Result<void> apply_flags(MountSpec& mount, std::string_view item, std::string_view text) {
  MountOptions options;
  for (const std::string_view name : split(text, '+')) {
    const auto* refusal = std::ranges::find(kRefused, name, &Refusal::name);
    if (refusal != std::end(kRefused)) return refuse(item, formatted("{}: {}", name, refusal->why));
    if (!options.add(name)) SPC_TRY(apply_own_flag(mount, item, name));
  }
  mount.flags |= source_flags_of(options);
  mount.create = create_of(options.create);
  mount.optional = options.no_fail;
  mount.silent = options.quiet;
  if (options.detach) mount.kind = MountSpec::Kind::removal;  // of enroot: then nothing is mounted
  const bool is_directory =
      mount.kind == MountSpec::Kind::tmpfs || mount.kind == MountSpec::Kind::squashfs;
  if (mount.create == MountSpec::Create::file && is_directory) {
    return refuse(item, "x-create=file: the target must be a directory");
  }
  return {};
}

std::string inside(std::string_view target) {
  while (target.starts_with("./")) target.remove_prefix(2);
  if (target == ".") target = "";
  return target.starts_with('/') ? std::string(target) : "/" + std::string(target);
}

/// Whether it begins above `/`, or climbs there.
bool leaves_root(std::string_view target) {
  int depth = 0;
  for (const std::string_view part : split(target, '/')) {
    if (part.empty() || part == ".") continue;
    depth += part == ".." ? -1 : 1;
    if (depth < 0) return true;
  }
  return false;
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

/// What was meant by a word that is no path.
std::string advice_on(std::string_view item, std::string_view word) {
  if (item.starts_with(' ')) return "no blank may follow a comma: SRC:DST,SRC:DST";
  return formatted("did you mean {}?", in_quotes("./" + std::string(word)));
}

/// Apptainer's `SRC:ro`: a target begins with / or a dot, so it is none.
bool is_flag_for_target(const MountWord& word) {
  return !word.quoted && (word.text == "ro" || word.text == "rw");
}

Result<MountSpec> parse_mount(const MountWords& words) {
  const auto& parts = words.parts;
  const auto item = words.item;
  const MountWord& source = parts[0];
  if (item.empty())
    return refuse(item, "invalid format")
        .hint("no blank may follow a comma, and none ends the list: SRC:DST,SRC:DST");
  if (source.text.empty() || parts.size() > 3 || (parts.size() > 1 && parts[1].text.empty())) {
    return refuse(item, "invalid format").hint(kForm);
  }
  MountSpec mount{.kind = kind_of(source), .shown_as = std::string(item)};
  const bool is_named = mount.kind != MountSpec::Kind::bind;
  if (is_named && parts.size() == 1)
    return refuse(item, "invalid format").hint(source.text + ":DST[:FLAGS]");
  const bool is_short = parts.size() == 2 && is_flag_for_target(parts[1]);
  if (!is_named) mount.source = source.text;

  const std::string& target = parts.size() > 1 && !is_short ? parts[1].text : source.text;
  if (parts.size() == 3) SPC_TRY(apply_flags(mount, item, parts[2].text));
  if (is_short) SPC_TRY(apply_flags(mount, item, parts[1].text));
  // A file of data may be named as it is: nothing else can be meant.
  if (!is_named && !is_path(source.text) && mount.kind != MountSpec::Kind::squashfs) {
    return refuse(item,
                  "mount source must be a relative path (beginning with .), an absolute path, "
                  "\"tmpfs\" or \"umount\"")
        .hint(advice_on(item, source.text));
  }
  if (!is_path(target)) {
    return refuse(item,
                  "mount target must be a relative path (beginning with .) or an absolute path")
        .hint(advice_on(item, target));
  }
  if (mount.kind == MountSpec::Kind::removal) mount.source.clear();
  mount.target = inside(target);
  if (is_root(mount.target)) {
    return refuse(item, mount.kind == MountSpec::Kind::removal
                            ? "cannot unmount the container's root"
                            : "cannot mount on the container's root");
  }
  if (leaves_root(mount.target))
    return refuse(item, "the target leaves the container's root: Cross-device link");
  return mount;
}

}  // namespace

Result<void> refuse_kernel_views(const MountSpec& mount) {
  constexpr std::string_view kWhole[] = {"/proc", "/sys", "/dev"};
  constexpr std::string_view kOfProc[] = {"/cpuinfo",
                                          "/diskstats",
                                          "/loadavg",
                                          "/meminfo",
                                          "/slabinfo",
                                          "/stat",
                                          "/swaps",
                                          "/uptime",
                                          "/net/dev",
                                          "/sys/crypto/fips_enabled",
                                          "/sys/kernel/ns_last_pid"};
  const std::string target = normal_path(mount.target);
  const bool is_whole = std::ranges::find(kWhole, target) != std::end(kWhole);
  const bool in_proc = target.starts_with("/proc/");
  if (mount.kind == MountSpec::Kind::removal || (!is_whole && !in_proc)) return {};
  if (is_whole && mount.kind == MountSpec::Kind::bind && normal_path(mount.source) == target)
    return {};
  if (in_proc && std::ranges::find(kOfProc, target.substr(kWhole[0].size())) != std::end(kOfProc))
    return {};
  return refuse(mount.shown_as,
                formatted("{} shows the kernel and cannot be covered", is_whole ? target : "/proc"))
      .hint(
          "mount it elsewhere; what is below /sys and /dev can be covered, and single files such "
          "as /proc/cpuinfo");
}

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
    if (std::find(mounts.begin(), mounts.end(), mount) == mounts.end())
      mounts.push_back(std::move(mount));
    if (words.last) return mounts;
  }
}

}  // namespace spc
