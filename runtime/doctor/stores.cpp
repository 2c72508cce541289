// The state of the image stores, and the checks of it.

#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string_view>

#include "base/bytes.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "doctor/node.hpp"
#include "image/pull/layer_process.hpp"
#include "protocol/layer.hpp"
#include "protocol/store_layout.hpp"
#include "registry/signature.hpp"

namespace spc {

// --- store state ---

namespace {

using Verdict = Finding::Verdict;

constexpr int kPlainDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

bool is_digest(std::string_view name) {
  return name.size() == 64 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_number(std::string_view name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Returns the number of entries that `counts` accepts, empty if the directory cannot be read.
std::optional<std::uint64_t> count_in(int parent, const char* directory,
                                      const std::function<bool(DirectoryReader&)>& counts) {
  std::uint64_t number = 0;
  DirectoryReader entries(UniqueFd(::openat(parent, directory, kPlainDirectory)));
  while (entries.next()) number += counts(entries) ? 1 : 0;
  return entries.error() == 0 ? std::optional(number) : std::nullopt;
}

/// Counts the containers by their names only: locks and notes are not opened.
std::optional<std::uint64_t> count_containers(int store) {
  std::uint64_t number = 0;
  const auto users = count_in(store, "containers", [&](DirectoryReader& user) {
    if (!is_number(user.name())) return false;  // the trash directory
    number += count_in(user.descriptor(), user.c_name(), [](DirectoryReader&) {
                return true;
              }).value_or(0);
    return true;
  });
  return users ? std::optional(number) : std::nullopt;
}

/// Returns the bytes that relays spool on this file system. Counts only nameless files of root or
/// the service user, so a user's own process of this program does not count.
std::uint64_t spooled(dev_t system, uid_t service) {
  std::uint64_t bytes = 0;
  for (DirectoryReader processes("/proc"); processes.next();) {
    if (!is_number(processes.name())) continue;
    const std::string process = "/proc/" + std::string(processes.name());
    char program[PATH_MAX];
    const ssize_t size = ::readlink((process + "/exe").c_str(), program, sizeof program);
    if (size <= 0 || std::string_view(program, static_cast<std::size_t>(size))
                             .find("/libexec/spank-container/relay") == std::string_view::npos)
      continue;
    for (DirectoryReader files(process + "/fd"); files.next();) {
      struct stat status {};
      const bool is_spool = ::fstatat(files.descriptor(), files.c_name(), &status, 0) == 0 &&
                            S_ISREG(status.st_mode) && status.st_dev == system &&
                            status.st_nlink == 0 &&
                            (status.st_uid == 0 || status.st_uid == service);
      if (is_spool) bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

}  // namespace

Result<StoreState> state_of_store(const std::string& path) {
  const UniqueFd store(
      ::open(path.c_str(), kPlainDirectory & ~O_NOFOLLOW));  // the site may have moved it
  if (!store) return Error::from_errno(errno, "open the image store " + in_quotes(path));
  struct statvfs system {};
  if (::fstatvfs(store.get(), &system) != 0)
    return Error::from_errno(errno, "get the free space of " + in_quotes(path));
  StoreState state;
  state.size = std::uint64_t{system.f_blocks} * system.f_frsize;
  state.used = std::uint64_t{system.f_blocks - system.f_bfree} * system.f_frsize;
  state.free = std::uint64_t{system.f_bavail} * system.f_frsize;
  state.inodes = system.f_files;
  state.free_inodes = system.f_favail;
  state.images = count_in(store.get(), store_layout::kRecords,
                          [](DirectoryReader& one) { return is_digest(one.name()); });
  state.layers = count_in(store.get(), store_layout::kLayers, [&](DirectoryReader& one) {
    std::string_view name = one.name();
    if (!name.ends_with(store_layout::kLayerEnding)) return false;
    name.remove_suffix(store_layout::kLayerEnding.size());
    struct stat status {};
    if (!is_digest(name) ||
        ::fstatat(one.descriptor(), one.c_name(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      return false;
    state.layer_bytes += static_cast<std::uint64_t>(status.st_size);
    return true;
  });
  state.containers = count_containers(store.get());
  struct stat status {};
  if (::geteuid() == 0 && ::fstatat(store.get(), store_layout::kImages, &status, 0) == 0) {
    state.spool_bytes = spooled(status.st_dev, status.st_uid);
  }
  return state;
}

std::optional<std::uint64_t> squashfs_layers(const std::string& path) {
  const UniqueFd store(::open(path.c_str(), kPlainDirectory & ~O_NOFOLLOW));
  const bool copies = files_share_blocks(path.c_str());
  return count_in(store.get(), store_layout::kLayers, [&](DirectoryReader& one) {
    const UniqueFd layer(
        ::openat(one.descriptor(), one.c_name(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    SquashfsSuper super;
    return ::pread(layer.get(), &super, sizeof super, 0) == sizeof super &&
           super.magic == SquashfsSuper::kMagic && !(copies && super.owners == 2);
  });
}

// --- checks of the stores ---

std::string free_space(const std::string& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return path;
  return formatted("{}, {} free", path,
                   human_bytes(std::uint64_t{status.f_bavail} * status.f_frsize));
}

Finding examine_shared_store() {
  constexpr char kShared[] = "shared store";
  const auto config = read_config(SPC_CONFIG_FILE);
  if (!config || config->shared.directory.empty())
    return {kShared, Verdict::ok, "none: [shared] directory is not set", ""};
  const std::string& directory = config->shared.directory;
  struct stat status {};
  const int err = ::stat(directory.c_str(), &status) != 0 ? errno
                  : !S_ISDIR(status.st_mode)              ? ENOTDIR
                                                          : 0;
  if (err != 0) {
    return {kShared, Verdict::warning, formatted("{}: {}", directory, std::strerror(err)),
            "mount its file system, or correct [shared] directory in config.toml"};
  }
  const passwd* const user = ::getpwnam("spank-container");
  if (user == nullptr || status.st_uid != user->pw_uid || (status.st_mode & 077) != 0) {
    return {kShared, Verdict::warning,
            directory + ": the service user is not its owner, or others can enter it",
            formatted("chown spank-container {0}; chmod 0700 {0}; the service user needs the same "
                      "uid on all nodes",
                      directory)};
  }
  if (!config->shared.uses_in_place()) return {kShared, Verdict::ok, directory, ""};
  const std::string& key = config->shared.in_place_key;
  if (const auto known = PublicKey::of_file(key, 0); !key.empty() && !known) {
    return {kShared, Verdict::warning, known.error().message(),
            "correct [shared] in_place_key: until then nodes pull each image"};
  }
  return {kShared, Verdict::ok,
          directory + ", used in place, " + (key.empty() ? "notes are not signed" : "signed notes"),
          ""};
}

Finding examine_own_store(const std::string& path, int store) {
  constexpr char kWhat[] = "your store";
  struct stat status {};
  if (::fstat(store, &status) != 0 || status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
    return {kWhat, Verdict::failed, path + " is accessible to other users", "chmod go-w " + path};
  }
  const UniqueFd nameless(::openat(store, "layers/sha256", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!nameless) {
    return {kWhat, Verdict::failed, formatted("{}: {}", path, std::strerror(errno)),
            "set XDG_DATA_HOME to a directory on a local disk: this file system does not support "
            "unnamed files"};
  }
  return {kWhat, Verdict::ok, free_space(path), ""};
}

/// Checks the free space. Images are evicted on demand, so other data on the file system fills it.
/// Users can do that, so the check never drains the node.
Finding examine_space() {
  constexpr char kSpace[] = "space of the store";
  constexpr std::uint64_t kLeast = 64 << 20;  // as much as a pull leaves free
  if (is_login_host()) return {kSpace, Verdict::ok, kLoginHost, ""};
  const auto state = state_of_store(SPC_STORE_DIR);
  if (!state)
    return {kSpace, Verdict::failed, state.error().message(),
            "start slurmd, which creates the store"};
  const auto config = read_config(SPC_CONFIG_FILE);
  const StoreConfig limits = config ? config->store : StoreConfig();
  const std::uint64_t others = state->used - std::min(state->used, state->layer_bytes);
  std::string has = formatted("{} of {} free, images use {}", human_bytes(state->free),
                              human_bytes(state->size), human_bytes(state->layer_bytes));
  if (state->spool_bytes > 0)
    has += formatted(", {} are kept for other nodes of running steps",
                     human_bytes(state->spool_bytes));
  constexpr char kRemove[] = "remove other data from the file system of " SPC_STORE_DIR
                             ", or give the store one of its own";
  if (state->free + state->layer_bytes < std::min(kLeast, state->size / 50))
    return {kSpace, Verdict::warning, "no room: " + has, kRemove};
  if (state->inodes > 0 && state->free_inodes < state->inodes / 100) {
    return {kSpace, Verdict::warning,
            formatted("{} of {} inodes free", state->free_inodes, state->inodes), kRemove};
  }
  if (others > state->size / 100 * limits.high_watermark) {
    return {kSpace, Verdict::warning,
            formatted("{}: without images the file system is above high_watermark ({}%)", has,
                      limits.high_watermark),
            kRemove};
  }
  return {kSpace, Verdict::ok, has, ""};
}

/// Checks for old layers. Layers stay as they were converted: without erofs on a kernel before 6.2,
/// or by a version whose layers cannot be copied.
Finding examine_layers() {
  constexpr char kLayers[] = "layers";
  const auto config = read_config(SPC_CONFIG_FILE);
  const bool can_be_mapped =
      config && config->squashfs == "auto" && !config->wants_squashfs() && maps_only_erofs();
  const bool can_be_copied = config && config->wants_copies() && files_share_blocks(SPC_STORE_DIR);
  const bool wants_others = can_be_mapped || can_be_copied;
  const auto number = wants_others ? squashfs_layers(SPC_STORE_DIR).value_or(0) : 0;
  if (number == 0) return {kLayers, Verdict::ok, "none has to be pulled again", ""};
  return {kLayers, Verdict::warning,
          formatted("{} are squashfs, which FUSE serves with this kernel", number),
          "scontainer rm their images: when they are pulled again, the kernel serves them"};
}

}  // namespace spc
