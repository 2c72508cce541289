#include "hooks/node/node.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/loader.hpp"

namespace spc {

// --- node files ---

bool NodeFiles::exists(const std::string& path) const {
  return ::access(on_disk(path).c_str(), F_OK) == 0;
}

bool NodeFiles::is_regular(const std::string& path) const {
  struct stat status {};
  return ::stat(on_disk(path).c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

std::string NodeFiles::text(const std::string& path) const {
  const UniqueFd file(::open(on_disk(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return {};
  auto text = read_file(file.get(), 64 << 10);
  return text ? *std::move(text) : std::string();
}

std::string NodeFiles::link(const std::string& path) const {
  char target[PATH_MAX];
  const auto size = ::readlink(on_disk(path).c_str(), target, sizeof target);
  return size > 0 ? std::string(target, static_cast<std::size_t>(size)) : std::string();
}

std::vector<std::string> NodeFiles::names(const std::string& directory,
                                          std::string_view prefix) const {
  return names_if(directory, [&](std::string_view name) { return name.starts_with(prefix); });
}

std::vector<std::string> NodeFiles::names_if(
    const std::string& directory, const std::function<bool(std::string_view)>& wanted) const {
  std::vector<std::string> names;
  for (DirectoryReader entries(on_disk(directory)); entries.next();) {
    if (wanted(entries.name())) names.emplace_back(entries.name());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    const int order = compare_versions(a, b);
    return order != 0 ? order < 0 : a < b;
  });
  return names;
}

std::string field_of(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = next_part(text, '\n');
    const auto colon = line.find(':');
    if (colon == std::string_view::npos ||
        line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != name)
      continue;
    return std::string(trimmed(line.substr(colon + 1)));
  }
  return {};
}

// --- localtime ---

namespace {

constexpr char kLocaltime[] = "/etc/localtime";
constexpr std::string_view kZones = "/usr/share/zoneinfo/";
constexpr std::size_t kLargestZone = 64 * 1024;  ///< tzdata's files have less than 4 KiB

std::string link_of(const std::string& path) {
  char text[PATH_MAX];
  const ssize_t size = ::readlink(path.c_str(), text, sizeof text);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : "";
}

/// Returns /usr/share/zoneinfo/Europe/Zurich, or an empty text. Links to the zone are relative
/// (Debian) or absolute (systemd).
std::string zone_file_of(std::string link) {
  if (link.starts_with("../")) link.erase(0, 2);
  const bool is_zone = link.starts_with(kZones) && link.find("/../") == std::string::npos &&
                       link.size() > kZones.size();
  return is_zone ? link : "";
}

/// Reads a zone's file if it is a regular file in the C library's format (tzfile(5)); otherwise
/// returns an empty text.
std::string zone_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const auto zone = read_file(file.get(), kLargestZone);
  return zone && zone->starts_with("TZif") ? *zone : "";
}

Result<Edits> zone_of_the_node(const HookContext& context) {
  Edits edits;
  const std::string zone = zone_of(context.host_root + kLocaltime);
  // A node without a zone keeps UTC, and the image keeps its own zone.
  if (zone.empty()) return edits;
  const std::string path = zone_file_of(link_of(context.host_root + kLocaltime));
  edits.files.push_back({path.empty() ? kLocaltime : path, zone});
  if (!path.empty()) edits.symlinks.push_back({kLocaltime, ".." + path});
  edits.notes.push_back("the time zone is the node's" +
                        (path.empty() ? "" : ", " + path.substr(kZones.size())));
  return edits;
}

/// Drops the file of the zone if the image has its own.
Result<void> leave_what_the_image_has(const HookContext& context, Edits& edits) {
  std::erase_if(edits.files, [&](const FileEdit& file) {
    const auto of_image = file.path == kLocaltime
                              ? std::nullopt
                              : context.image_file(file.path.c_str(), kLargestZone);
    return of_image && of_image->starts_with("TZif");
  });
  return {};
}

}  // namespace

const Hook localtime_hook{.name = "10-localtime",
                          .says = "the time zone of the node",
                          .prepare = zone_of_the_node,
                          .create = leave_what_the_image_has};

// --- users ---

namespace {

/// Reports the entries. The root file system set-up writes the lines, because it knows the user and
/// the groups.
Result<void> tell_of_the_user(const HookContext& context, Edits& edits) {
  if (context.remap_root) {
    edits.notes.push_back(
        "root and its group are added to /etc/passwd and /etc/group if the image lacks them");
  } else if (!context.user.empty()) {
    edits.notes.push_back(
        formatted("entries of {} and the user's groups are added to /etc/passwd and /etc/group",
                  context.user));
  }
  return {};
}

bool is_root_inside(const HookContext& context) { return context.remap_root; }

/// Configures apt to stay root. Otherwise apt would fetch as the user _apt, which does not exist
/// where only root is mapped.
Result<void> let_apt_stay_root(const HookContext& context, Edits& edits) {
  if (!context.open_in_image || !context.open_in_image("/etc/apt", O_RDONLY | O_DIRECTORY))
    return {};
  edits.files.push_back(
      {"/etc/apt/apt.conf.d/90spank-container", "APT::Sandbox::User \"root\";\n"});
  edits.notes.push_back("apt downloads as root");
  return {};
}

}  // namespace

const Hook shadow_hook{.name = "10-shadow",
                       .says = "the user and groups in passwd and group",
                       .create = tell_of_the_user};

const Hook aptfix_hook{.name = "10-aptfix",
                       .says = "apt keeps running as the remapped root",
                       .when = is_root_inside,
                       .create = let_apt_stay_root};

// --- ssh ---

namespace {

constexpr char kSshd[] = "/run/spank-container/ssh/";
/// Since OpenSSH 9.8 sshd executes a program for each connection, and since 10.0 another one.
constexpr const char* kSshPrograms[] = {"/usr/bin/ssh-keygen",
                                        "/usr/lib/openssh/sshd-session",
                                        "/usr/lib/openssh/sshd-auth",
                                        "/usr/libexec/openssh/sshd-session",
                                        "/usr/libexec/openssh/sshd-auth",
                                        "/usr/lib/ssh/sshd-session",
                                        "/usr/lib/ssh/sshd-auth"};

const std::string* annotation_of(const HookContext& context, const char* name) {
  const auto found = context.annotations.find(name);
  return found == context.annotations.end() ? nullptr : &found->second;
}

bool wants_ssh(const HookContext& context) {
  const std::string* enabled = annotation_of(context, "com.hooks.ssh.enabled");
  return enabled != nullptr && *enabled == "true";
}

/// The mounts of a program and of all libraries that its loader will need.
class ProgramMounts {
 public:
  ProgramMounts(const HookContext& context, Edits& edits)
      : node_(context.host_root), edits_(edits) {}

  /// Returns false if the node has no such file.
  bool add(const std::string& path, const std::string& name) {
    const std::string target = kSshd + name;
    if (std::ranges::find(edits_.mounts, target, &MountEdit::target) != edits_.mounts.end())
      return true;
    if (!node_.is_regular(path)) return false;
    edits_.mounts.push_back({.source = path, .target = target});
    return true;
  }

  /// Adds the interpreters and libraries of all files, and of those that it adds.
  void add_libraries() {
    for (std::size_t i = 0; i < edits_.mounts.size(); ++i) {
      const UniqueFd file(::open(node_.on_disk(edits_.mounts[i].source).c_str(),
                                 O_RDONLY | O_CLOEXEC | O_NONBLOCK));
      const auto elf = read_elf(file.get());
      if (!elf) continue;
      if (!elf->interpreter.empty()) add(elf->interpreter, "ld.so");
      for (const std::string& name : elf->needed) add_library(name);
    }
  }

  /// Adds a library from the first directory that has it.
  void add_library(const std::string& name) {
    for (const std::string& directory : default_library_directories(own_machine())) {
      if (add(directory + "/" + name, name)) return;
    }
  }

 private:
  NodeFiles node_;
  Edits& edits_;
};

/// Requests the mounts of the node's sshd. The image needs neither sshd nor a C library.
[[gnu::cold]] Result<Edits> offer_sshd(const HookContext& context) {
  Edits edits;
  ProgramMounts mounts(context, edits);
  const std::string sshd = context.setting("sshd", "/usr/sbin/sshd");
  if (!mounts.add(sshd, "sshd")) {
    edits.warnings.push_back(
        formatted("open {}: no such file (hint: job-ssh take-sshd, or the administrator: apt-get "
                  "install openssh-server)",
                  in_quotes(sshd)));
    return edits;
  }
  for (const std::string path : kSshPrograms) mounts.add(path, path.substr(path.rfind('/') + 1));
  // sshd executes sshd-session and sshd-auth by scripts, which start them with the node's loader.
  for (const char* name : {"session", "auth"})
    edits.files.push_back(
        {std::string(kSshd) + name,
         formatted("#!/bin/sh\nexec {0}ld.so --library-path {0} {0}sshd-{1} \"$@\"\n", kSshd, name),
         0755});
  mounts.add_library("libnss_files.so.2");  // glibc before 2.34 opens it to find the user
  mounts.add_libraries();
  constexpr char kKey[] = "com.hooks.ssh.authorize_ssh_key";
  if (const std::string* key = annotation_of(context, kKey)) {
    if (!key->starts_with('/'))
      edits.refusal =
          formatted("{}: {} is not an absolute path (hint: /home/NAME/.ssh/id_ed25519.pub)", kKey,
                    in_quotes(*key));
    edits.mounts.push_back({.source = *key, .target = std::string(kSshd) + "keys"});
  }
  edits.notes.push_back("job-ssh starts the node's " + sshd);
  return edits;
}

}  // namespace

const Hook ssh_hook{.name = "50-ssh",
                    .says = "the node's sshd for job-ssh (--container-ssh)",
                    .when = wants_ssh,
                    .prepare = offer_sshd};

}  // namespace spc
