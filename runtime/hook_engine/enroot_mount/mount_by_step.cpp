#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>

#include "base/socket.hpp"
#include "hook_engine/enroot_mount/mount.hpp"
#include "hook_engine/root_path.hpp"
#include "protocol/hook_mount.hpp"
#include "protocol/task.hpp"

namespace spc {
namespace {

/// The value of NAME=VALUE in a list of options.
std::optional<std::string_view> value_of(std::string_view options, std::string_view name) {
  while (!options.empty()) {
    const auto option = options.substr(0, options.find(','));
    options.remove_prefix(std::min(option.size() + 1, options.size()));
    if (option.size() > name.size() && option.starts_with(name) && option[name.size()] == '=') {
      return option.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

/// Bytes, with k, m or g, or a part of the machine's memory, as the kernel reads it.
Result<std::uint64_t> size_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  const auto memory = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;
  if (error == std::errc() && number < kMost) {
    if (unit.empty()) return number;
    if (unit == "%") return memory / 100 * std::min<std::uint64_t>(number, 100);
    const auto power = std::string_view("kmg").find(static_cast<char>(unit[0] | 0x20));
    if (unit.size() == 1 && power != std::string_view::npos && number < kMost >> 30)
      return number << 10 * (power + 1);
  }
  return Error::from_errno(EINVAL, "size=" + std::string(text));
}

Result<void> ask(int socket, const HookMountRequest& request,
                 std::initializer_list<int> descriptors) {
  SPC_TRY(send_struct(socket, request, std::span(descriptors.begin(), descriptors.size())));
  HookMountAnswer answer;
  SPC_TRY(receive_struct(socket, answer));
  if (answer.error != 0) return Error::from_errno(answer.error, "mount");
  return {};
}

/// The file system that now covers `target`, which still stands for what is below.
Result<void> set_mode(const UniqueFd& target, std::string_view text) {
  unsigned mode = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (error != std::errc() || end != text.data() + text.size() || mode > 07777)
    return Error::from_errno(EINVAL, "mode=");
  // By its path, since that is what leads to the top.
  char path[4096];
  const auto size =
      ::readlink(("/proc/self/fd/" + std::to_string(target.get())).c_str(), path, sizeof path - 1);
  if (size <= 0) return Error::from_errno(errno, "find the new file system");
  path[size] = '\0';
  if (::chmod(path, mode & 01777U) != 0)
    return Error::from_errno(errno, "set the mode of the new file system");
  return {};
}

}  // namespace

Result<void> mount_by_step(const OpenedMount& mount, int socket) {
  const EnrootFstabLine& line = mount.line;
  if (line.detach || (line.flags & MS_MOVE) != 0) return Error::from_errno(EPERM, "remove a mount");
  if (!line.mounts()) return {};  // nothing is propagated from here to anywhere
  HookMountRequest request;
  request.flags = source_flags_of(line);
  if ((line.flags & MS_REMOUNT) != 0)
    return ask(socket, request, {mount.target.get(), mount.target.get()});
  if ((line.flags & MS_BIND) != 0)
    return ask(socket, request, {mount.target.get(), mount.source.get()});
  if (line.type != "tmpfs")
    return Error::from_errno(EPERM, "mount a file system of type " + in_quotes(line.type));
  request.flags |= TaskMessage::source_tmpfs;
  if (const auto size = value_of(line.data, "size")) request.size = SPC_TRY(size_of(*size));
  SPC_TRY(ask(socket, request, {mount.target.get()}));
  const auto mode = value_of(line.data, "mode");
  // A read-only one keeps 0755.
  return mode && (line.flags & MS_RDONLY) == 0 ? set_mode(mount.target, *mode) : Result<void>();
}

}  // namespace spc
