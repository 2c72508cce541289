// The syntax of --container-mounts: sizes, quoting, words and mount specifications.

#include "request/mount_spec.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hook_engine/enroot_fstab.hpp"
#include "protocol/task.hpp"

namespace spc {

// --- memory size ---

namespace {

constexpr std::string_view kGrammar = "bytes with suffix K, M, G or T, or N% of the job's memory";
/// Bytes: above the memory of any machine, and sums of it do not overflow.
constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
constexpr std::uint64_t kPage = 4096;

/// Parses all of `text` or returns false. Larger numbers become `kMost`, which exceeds every limit.
bool read_size(std::string_view text, std::uint64_t& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem == std::errc::result_out_of_range) number = kMost;
  return problem != std::errc::invalid_argument && end == text.data() + text.size();
}

std::string contents(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  constexpr std::size_t kSane = 1 << 16;
  const auto text = file ? read_file(file.get(), kSane) : Result<std::string>(std::string());
  return text ? *text : std::string();
}

/// Returns the smallest limit of this cgroup and its ancestors: slurmd sets limits on job, step and
/// task.
std::uint64_t least_limit(const std::string& mounted_at, std::string group, const char* file) {
  std::uint64_t least = kMost;
  for (;;) {
    std::string text = contents(mounted_at + group + "/" + file);
    if (!text.empty() && text.back() == '\n') text.pop_back();
    std::uint64_t limit = kMost;  // "max" is not a number, and version 1 writes a very large one
    if (read_size(text, limit) && limit != 0) least = std::min(least, limit);
    const auto slash = group.rfind('/');
    if (slash == std::string::npos) return least;
    group.resize(slash);
  }
}

std::uint64_t limit_of_cgroup() {
  std::uint64_t least = kMost;
  const std::string groups = contents("/proc/self/cgroup");
  for (std::string_view rest = groups; !rest.empty();) {
    // "4:memory:/slurm/job_7" or "0::/slurm/job_7"
    const std::string_view line = next_part(rest, '\n');
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string group(line.substr(second + 1));
    if (controllers.empty())
      least = std::min(least, least_limit("/sys/fs/cgroup", group, "memory.max"));
    if (controllers == "memory")
      least = std::min(least, least_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return least;
}

std::uint64_t number_of(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  std::uint64_t number = 0;
  return found != environment.end() && read_size(found->second, number) ? number : 0;
}

/// Returns the memory requested from Slurm on this node; 0 if unset, or if all of it was requested.
std::uint64_t asked_of_slurm(const std::map<std::string, std::string>& environment) {
  constexpr std::uint64_t kMegabyte = 1 << 20;
  const std::uint64_t a_node = number_of(environment, "SLURM_MEM_PER_NODE");
  if (a_node != 0) return std::min(a_node, kMost / kMegabyte) * kMegabyte;
  const std::uint64_t a_cpu = number_of(environment, "SLURM_MEM_PER_CPU");
  const std::uint64_t cpus =
      std::min(number_of(environment, "SLURM_CPUS_ON_NODE"), std::uint64_t{1} << 16);
  return std::min(a_cpu, kMost / kMegabyte / (std::uint64_t{1} << 16)) * cpus * kMegabyte;
}

}  // namespace

Result<MemorySize> MemorySize::parse(std::string_view text) {
  const auto refuse = [&](const char* why) {
    return Error(ErrorKind::invalid, in_quotes(text) + why).hint(kGrammar);
  };
  MemorySize size;
  const auto digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view unit = text.substr(digits);
  std::uint64_t number = 0;
  if (digits == 0 || !read_size(text.substr(0, digits), number) || unit.size() > 1)
    return refuse(" is not a size");
  if (number == 0) return refuse(": too small");
  if (unit == "%") {
    if (number > 100) return refuse(" is more than 100%");
    size.percent = static_cast<std::uint32_t>(number);
    return size;
  }
  static constexpr std::string_view kUnits = "KMGTkmgt";
  const auto which = unit.empty() ? 0 : kUnits.find(unit[0]) % 4 + 1;
  if (!unit.empty() && kUnits.find(unit[0]) == std::string_view::npos)
    return refuse(" is not a size");
  if (number >= kMost >> (10 * which)) return refuse(" is too large");
  size.bytes = number << (10 * which);
  return size;
}

std::uint64_t memory_of_job(const std::map<std::string, std::string>& job_environment) {
  const std::uint64_t machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (const auto limit = limit_of_cgroup(); limit < machine) return limit;
  const auto asked = asked_of_slurm(job_environment);
  return asked != 0 ? std::min(asked, machine) : machine;
}

Result<std::uint64_t> bytes_of(const MemorySize& size, std::uint64_t memory,
                               const std::string& most) {
  const auto in_bytes = [&](const MemorySize& some) {
    return std::max(kPage, some.percent != 0 ? memory / 100 * some.percent : some.bytes);
  };
  const std::uint64_t bytes = in_bytes(size);
  if (most.empty()) return bytes;
  const auto limit = MemorySize::parse(most);
  if (limit && bytes > in_bytes(*limit)) {
    return Error(ErrorKind::refused,
                 formatted("{} bytes exceed the {} allowed by this site", bytes, most))
        .hint("request less");
  }
  return bytes;
}

// --- quoted text ---

Result<QuotedPiece> next_piece(std::string_view& rest, std::string_view separators) {
  QuotedPiece piece;
  const bool begins_quoted = rest.starts_with('"');
  bool open = begins_quoted;
  if (begins_quoted) rest.remove_prefix(1);
  const auto special = [&](char c) {
    return c == '"' || c == '\\' || c == ' ' || separators.find(c) != std::string_view::npos;
  };
  while (!rest.empty()) {
    char c = rest[0];
    rest.remove_prefix(1);
    if (open && c == '"') {
      open = false;
      continue;
    }
    if (!open && separators.find(c) != std::string_view::npos) {
      piece.end = c;
      return piece;
    }
    if (begins_quoted && !open) return Error(ErrorKind::invalid, "text after the closing quote");
    if (c == '\\' && !rest.empty() && special(rest[0])) {
      c = rest[0];
      rest.remove_prefix(1);
    }
    piece.text += c;
  }
  if (open) return Error(ErrorKind::invalid, "the closing quote is missing");
  return piece;
}

// --- mount words ---

Result<MountWords> take_mount(std::string_view& list) {
  MountWords mount;
  const std::string_view begin = list;
  for (;;) {
    const std::string_view word = list;
    auto piece = next_piece(list, ":,");
    if (!piece) {
      return Error(ErrorKind::invalid, in_quotes(word) + ": " + piece.error().message())
          .hint("write a literal quote as \\\"");
    }
    mount.parts.push_back({piece->text, word.starts_with('"')});
    if (piece->end == ':') continue;
    mount.last = piece->end == '\0';
    mount.item = begin.substr(0, begin.size() - list.size() - (mount.last ? 0 : 1));
    return mount;
  }
}

// --- mount spec ---

namespace {

constexpr std::string_view kForm = "SRC[:DST[:FLAGS]]";

Error refuse(std::string_view item, std::string_view why) {
  return Error(ErrorKind::invalid, formatted("{}: {}", in_quotes(item), why));
}

bool is_path(std::string_view text) { return text.starts_with('/') || text.starts_with('.'); }

/// A flag that no mount can have here, and the reason.
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
};

struct HugeWord {
  std::string_view word;
  std::uint32_t flag;
};
constexpr HugeWord kHuge[] = {{"never", TaskMessage::source_huge_never},
                              {"always", TaskMessage::source_huge_always},
                              {"within_size", TaskMessage::source_huge_within_size},
                              {"advise", TaskMessage::source_huge_advise}};

/// Checks the owner of a tmpfs, which must be the user. 0 is the user as well, who is root in a
/// container with remapped root.
Result<void> check_owner(std::string_view item, std::string_view flag, std::string_view value) {
  std::uint64_t number = 0;
  const std::uint64_t own = flag.starts_with("uid=") ? ::geteuid() : ::getegid();
  if (read_number(value, number) && (number == own || number == 0)) return {};
  return refuse(item, formatted("{}: a tmpfs is its user's", flag));
}

Result<void> apply_tmpfs_flag(MountSpec& mount, std::string_view item, std::string_view flag) {
  const std::string_view value = flag.substr(flag.find('=') + 1);
  if (flag.starts_with("size=")) {
    mount.size = SPC_TRY_DURING(in_quotes(item), MemorySize::parse(value));
    return {};
  }
  if (flag.starts_with("uid=") || flag.starts_with("gid=")) return check_owner(item, flag, value);
  if (flag.starts_with("nr_inodes=")) {
    if (read_number(value, mount.inodes) && mount.inodes > 0) return {};
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
  if (!read_number(value, mode, 8) || mode > 01777)
    return refuse(item, in_quotes(value) + " is not a mode").hint("octal digits, as 0755 or 1777");
  mount.mode = mode;
  return {};
}

/// Returns whether it is a flag of docker or podman that no mount needs here.
bool is_needless(std::string_view flag) {
  constexpr std::string_view kNotNeeded[] = {"z",         "Z",          "U",     "cached",
                                             "delegated", "consistent", "nocopy"};
  return std::ranges::find(kNotNeeded, flag) != std::end(kNotNeeded) ||
         flag.starts_with("consistency=") || flag.starts_with("bind-propagation=");
}

/// Applies a flag that is not an fstab option, or refuses an fstab option that is impossible here.
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
  if (is_needless(name)) {
    return refuse(item, formatted("flag {} is docker's and not needed", in_quotes(name)))
        .hint("leave it out; flags are joined by +: ro+noexec");
  }
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
    if (name == "shared" || name == "rshared") mount.idle_flag = name;
  }
  mount.flags |= source_flags_of(options);
  mount.create = create_of(options.create);
  mount.optional = options.no_fail;
  mount.silent = options.quiet;
  // enroot's detach: nothing is mounted then
  if (options.detach) mount.kind = MountSpec::Kind::removal;
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

/// Returns whether `target` contains a .. that leads above `/`.
bool leaves_root(std::string_view target) {
  int depth = 0;
  for (const std::string_view part : split(target, '/')) {
    if (part.empty() || part == ".") continue;
    depth += part == ".." ? -1 : 1;
    if (depth < 0) return true;
  }
  return false;
}

/// Returns true for `/` in any notation: `//`, `/.`, `/x/..`.
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

bool is_file(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

/// Returns the probable meaning of a word that is not a path. `before`: the text before it, which
/// ended at this separator and may be part of the same path.
std::string advice_on(std::string_view item, std::string_view word, const std::string& before,
                      char separator) {
  if (item.starts_with(' ')) return "no blank may follow a comma: SRC:DST,SRC:DST";
  const std::string end(word);
  if (!before.empty() && is_file(before + separator + end)) {
    return formatted("a {} in a path is written \\{}: {}", separator == ',' ? "comma" : "colon",
                     separator, for_shell(before + "\\" + separator + end));
  }
  const bool is_odd = word.find_first_of("~$`\"'; ") != std::string_view::npos || word.empty();
  if (is_odd || word.starts_with('-')) return std::string(kForm);
  return formatted("did you mean {}?", in_quotes("./" + end));
}

/// Returns whether the target is Apptainer's flag in `SRC:ro`. A real target begins with / or a
/// dot.
bool is_flag_for_target(const MountWord& word) {
  return !word.quoted && (word.text == "ro" || word.text == "rw");
}

/// Returns a source or target as its user means it.
Result<std::string> meant(const MountWord& word, const UserPaths& paths) {
  if (!word.quoted) SPC_TRY(paths.refuse_variables(word.text));
  return paths.resolve(word.text);
}

/// Returns whether an item of the list is a flag, which users of docker and mount(8) put behind a
/// comma.
bool is_flag(const MountWords& words) {
  if (words.parts.size() != 1 || words.parts[0].quoted) return false;
  const std::string& word = words.parts[0].text;
  const std::string name = word.substr(0, word.find('='));
  constexpr std::array<std::string_view, 7> kOfTmpfs{"size", "mode", "uid",      "gid",
                                                     "huge", "sqsh", "nr_inodes"};
  if (is_needless(word) || word == "ro" || word == "rw") return true;
  const bool is_known = std::ranges::find(kRefused, word, &Refusal::name) != std::end(kRefused) ||
                        std::ranges::find(kOfTmpfs, name) != kOfTmpfs.end() ||
                        is_mount_option(word);
  return is_known && !is_file(word);  // user, group, auto
}

/// Returns the error for a flag behind a comma. `rest`: the list behind it, whose flags belong to
/// the same mount.
Error flag_behind_comma(const MountWords& mount, const MountWords& flag, std::string_view rest) {
  std::string flags;
  MountWords one = flag;
  for (;;) {
    const std::string& word = one.parts[0].text;
    if (!is_needless(word)) flags += "+" + word;
    if (one.last) break;
    auto next = take_mount(rest);
    if (!next || !is_flag(*next)) break;
    one = *std::move(next);
  }
  const bool has_flags =
      mount.parts.size() > 2 ||
      (mount.parts.size() == 2 && (mount.parts[1].text == "ro" || mount.parts[1].text == "rw"));
  if (!flags.empty() && !has_flags) flags[0] = ':';
  return refuse(flag.item, "is a flag, not a path")
      .hint(formatted("flags are joined by +, and docker's z, Z, U, cached, delegated and "
                      "consistent are not needed: {}",
                      in_quotes(std::string(mount.item) + flags)));
}

/// Refuses a list whose separator is not a comma.
Result<void> refuse_other_separators(const MountWords& words) {
  for (const MountWord& word : words.parts) {
    const auto at = word.text.find(';');
    if (word.quoted || at == std::string::npos || at + 1 == word.text.size()) continue;
    const bool begins_path =
        std::string_view("/.~$").find(word.text[at + 1]) != std::string_view::npos;
    if (!begins_path || is_file(word.text)) continue;
    std::string list(words.item);
    std::ranges::replace(list, ';', ',');
    return refuse(words.item, "mounts are separated by commas, not by ;").hint(in_quotes(list));
  }
  return {};
}

Result<MountSpec> parse_mount(const MountWords& words, const std::string& before,
                              const UserPaths& paths) {
  const auto& parts = words.parts;
  const auto item = words.item;
  const MountWord& source = parts[0];
  if (item.empty())
    return refuse(item, "invalid format")
        .hint("no blank may follow a comma, and none ends the list: SRC:DST,SRC:DST");
  constexpr std::string_view kOfDocker[] = {"type=", "src=", "source=", "dst=", "target="};
  if (std::ranges::any_of(kOfDocker, [&](auto begin) { return item.starts_with(begin); }))
    return refuse(item, "is the form of docker's --mount").hint(kForm);
  SPC_TRY(refuse_other_separators(words));
  if (source.text.empty() || parts.size() > 3 || (parts.size() > 1 && parts[1].text.empty())) {
    return refuse(item, "invalid format").hint(kForm);
  }
  MountSpec mount{.kind = kind_of(source), .shown_as = std::string(item)};
  const bool is_named = mount.kind != MountSpec::Kind::bind;
  if (is_named && parts.size() == 1)
    return refuse(item, "invalid format").hint(source.text + ":DST[:FLAGS]");
  const bool is_short = parts.size() == 2 && is_flag_for_target(parts[1]);
  if (!is_named) mount.source = SPC_TRY(meant(source, paths));

  const std::string target =
      parts.size() > 1 && !is_short ? SPC_TRY(meant(parts[1], paths)) : mount.source;
  if (parts.size() == 3) SPC_TRY(apply_flags(mount, item, parts[2].text));
  if (is_short) SPC_TRY(apply_flags(mount, item, parts[1].text));

  // A squashfs file may be given by a bare name: there is no other interpretation.
  if (!is_named && !is_path(mount.source) && mount.kind != MountSpec::Kind::squashfs) {
    return refuse(item,
                  "mount source must be a relative path (beginning with .), an absolute path, "
                  "\"tmpfs\" or \"umount\"")
        .hint(advice_on(item, source.text, before, ','));
  }
  if (!is_path(target)) {
    return refuse(item,
                  "mount target must be a relative path (beginning with .) or an absolute path")
        .hint(advice_on(item, target, is_named ? "" : source.text, ':'));
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
  return {ErrorKind::invalid, formatted("more than {} mounts", kMaxMounts)};
}

Result<std::vector<MountSpec>> parse_mounts(std::string_view text, const UserPaths& paths) {
  std::vector<MountSpec> mounts;
  std::optional<MountWords> before;
  if (text.empty()) return Error(ErrorKind::invalid, "argument required");
  for (;;) {
    if (mounts.size() == kMaxMounts) return too_many_mounts();
    auto words = SPC_TRY(take_mount(text));
    if (before && is_flag(words)) return flag_behind_comma(*before, words, text);
    auto mount = SPC_TRY(parse_mount(words, before ? before->parts.back().text : "", paths));
    if (std::find(mounts.begin(), mounts.end(), mount) == mounts.end())
      mounts.push_back(std::move(mount));
    if (words.last) return mounts;
    before = std::move(words);
  }
}

Result<void> check_mount_text(const std::string& text) {
  SPC_TRY(parse_mounts(text));
  return {};
}

}  // namespace spc
