#include "launch/mount_spec.hpp"

#include <algorithm>

#include "container/protocol.hpp"

namespace spc {
namespace {

constexpr std::string_view kOption = "--container-mounts";

Error refuse(std::string_view item, std::string_view why) {
  return Error(ErrorKind::invalid, std::string(kOption) + ": " + quoted(item) + ": " + std::string(why));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool is_path(std::string_view text) { return text.starts_with('/') || text.starts_with('.'); }

Result<std::uint32_t> parse_flags(std::string_view item, std::string_view text) {
  std::uint32_t flags = 0;
  for (const std::string_view flag : split(text, '+')) {
    if (flag == "ro") {
      flags |= TaskMessage::source_read_only;
    } else if (flag == "noexec") {
      flags |= TaskMessage::source_no_exec;
    } else if (flag == "bind") {
      flags |= TaskMessage::source_not_recursive;
    } else if (flag == "rbind") {
      flags &= ~TaskMessage::source_not_recursive;
    } else if (flag == "rw" || flag == "exec" || flag == "nosuid" || flag == "nodev" || flag == "slave" || flag == "rslave" ||
               flag == "private" || flag == "rprivate" || flag == "x-create=auto" || flag == "x-create=dir" ||
               flag == "x-create=file") {
      // Already so: every mount is nosuid, nodev and a slave of the host's; the target is made to fit the source.
    } else {
      return refuse(item, "unknown flag " + quoted(flag)).hint("flags, joined by +: ro, rw, bind, rbind, noexec");
    }
  }
  return flags;
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

Result<MountSpec> parse_mount(std::string_view item) {
  const auto parts = split(item, ':');
  const std::string_view source = parts[0];
  if (source.empty() || parts.size() > 3 || (parts.size() > 1 && parts[1].empty())) {
    return refuse(item, "invalid format").hint("SRC[:DST[:FLAGS]]");
  }
  if (source == "tmpfs" || source == "umount") {
    return refuse(item, "mounts of type " + quoted(source) + " are not supported yet");
  }
  if (!is_path(source)) return refuse(item, "mount source must be a relative path (beginning with .) or an absolute path");
  const std::string_view target = parts.size() > 1 ? parts[1] : source;
  if (!is_path(target)) return refuse(item, "mount target must be a relative path (beginning with .) or an absolute path");
  MountSpec mount{.source = std::string(source), .target = inside(target), .shown_as = std::string(item)};
  if (parts.size() == 3) mount.flags = SPC_TRY(parse_flags(item, parts[2]));
  if (is_root(mount.target)) return refuse(item, "cannot mount on the container's root");
  return mount;
}

}  // namespace

Error too_many_mounts() {
  return {ErrorKind::invalid, std::string(kOption) + ": more than " + std::to_string(kMaxMounts) + " mounts"};
}

Result<std::vector<MountSpec>> parse_mounts(std::string_view text) {
  std::vector<MountSpec> mounts;
  if (text.empty()) return Error(ErrorKind::invalid, std::string(kOption) + ": argument required");
  for (const std::string_view item : split(text, ',')) {
    if (mounts.size() == kMaxMounts) return too_many_mounts();
    auto mount = SPC_TRY(parse_mount(item));
    if (std::find(mounts.begin(), mounts.end(), mount) == mounts.end()) mounts.push_back(std::move(mount));
  }
  return mounts;
}

}  // namespace spc
