#include "agent/builder/loop_device.hpp"

#include <fcntl.h>
#include <linux/loop.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <string>

#include "agent/node/system_call.hpp"

namespace spc::agent {
namespace {

/// Attribute of a layer's file: the number of the device that served it last.
constexpr char kHint[] = "trusted.spank-container.loop";

Result<UniqueFd> open_loop(int number) {
  const std::string path = "/dev/loop" + std::to_string(number);
  return own(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "open " + quoted(path));
}

/// The device, if it still serves exactly this file, read-only and from its first byte to its last.
UniqueFd reuse(int number, int layer_file) {
  struct stat file {};
  auto device = open_loop(number);
  if (!device || ::fstat(layer_file, &file) != 0) return {};
  loop_info64 info{};
  // From the open on autoclear cannot free it, so what the kernel says here stays true.
  if (::ioctl(device->get(), LOOP_GET_STATUS64, &info) != 0) return {};
  const bool same = info.lo_device == file.st_dev && info.lo_inode == file.st_ino && info.lo_offset == 0 &&
                    info.lo_sizelimit == 0 && (info.lo_flags & LO_FLAGS_READ_ONLY) != 0;
  return same ? std::move(*device) : UniqueFd();
}

Result<LoopDevice> configure_new(int control, int layer_file) {
  const loop_config config{static_cast<unsigned>(layer_file), 4096, {.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR}, {}};
  for (int attempt = 0; attempt < 256; ++attempt) {
    const int number = ::ioctl(control, LOOP_CTL_GET_FREE);
    if (number < 0) return Error::from_errno(errno, "find a free loop device");
    auto device = SPC_TRY(open_loop(number));
    if (::ioctl(device.get(), LOOP_CONFIGURE, &config) == 0) return LoopDevice{std::move(device), number, false};
    if (errno != EBUSY) return Error::from_errno(errno, "set up a loop device");  // EBUSY: another step was faster
  }
  return Error(ErrorKind::unavailable, "set up a loop device: no free device");
}

}  // namespace

Result<LoopDevice> loop_device_of(int layer_file) {
  const auto control = SPC_TRY(own(::open("/dev/loop-control", O_RDWR | O_CLOEXEC), "open \"/dev/loop-control\""));
  // The steps of a node one after the other, else two would not share; not for long, all layers together, as a user may have
  // stopped his.
  static int patience = 200;  // milliseconds
  for (; ::flock(control.get(), LOCK_EX | LOCK_NB) != 0 && patience > 0; --patience) ::poll(nullptr, 0, 1);
  int number = -1;
  const bool known = ::fgetxattr(layer_file, kHint, &number, sizeof number) == sizeof number;
  if (auto device = known ? reuse(number, layer_file) : UniqueFd()) return LoopDevice{std::move(device), number, true};
  auto fresh = SPC_TRY(configure_new(control.get(), layer_file));
  // Mostly it is the same device as last time. Where it cannot be written, that only costs the sharing.
  if (fresh.number != number) (void)::fsetxattr(layer_file, kHint, &fresh.number, sizeof fresh.number, 0);
  return fresh;
}

}  // namespace spc::agent
