#include "tool/doctor/store_state.hpp"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string_view>

#include "base/directory.hpp"
#include "image/layer/worker/mountable.hpp"
#include "protocol/store_layout.hpp"

namespace spc::tool {
namespace {

constexpr int kPlainDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

bool is_digest(std::string_view name) {
  return name.size() == 64 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_number(std::string_view name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
}

/// How many entries `counts`; nothing if the directory cannot be read.
std::optional<std::uint64_t> count_in(int parent, const char* directory,
                                      const std::function<bool(DirectoryReader&)>& counts) {
  std::uint64_t number = 0;
  DirectoryReader entries(UniqueFd(::openat(parent, directory, kPlainDirectory)));
  while (entries.next()) number += counts(entries) ? 1 : 0;
  return entries.error() == 0 ? std::optional(number) : std::nullopt;
}

/// Only their names: locks and notes are left alone.
std::optional<std::uint64_t> count_containers(int store) {
  std::uint64_t number = 0;
  const auto users = count_in(store, "containers", [&](DirectoryReader& user) {
    if (!is_number(user.name())) return false;  // the trash
    number += count_in(user.descriptor(), user.c_name(), [](DirectoryReader&) {
                return true;
              }).value_or(0);
    return true;
  });
  return users ? std::optional(number) : std::nullopt;
}

/// Bytes on this file system of what relays keep: files that have no name and are root's or the
/// service user's, so that a user's own process of this program counts for nothing.
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
    std::uint32_t magic = 0;
    std::uint16_t owners = 0;  // of the super block of squashfs 4.0
    return ::pread(layer.get(), &magic, sizeof magic, 0) == sizeof magic &&
           magic == SQUASHFS_MAGIC &&
           ::pread(layer.get(), &owners, sizeof owners, 26) == sizeof owners &&
           !(copies && owners == 2);
  });
}

}  // namespace spc::tool
