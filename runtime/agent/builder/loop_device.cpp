#include "agent/builder/loop_device.hpp"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "agent/node/system_call.hpp"

namespace spc::agent {
namespace {

/// One slot of the table, zeros at first; two layers that fall on one slot only lose the sharing of the earlier one.
struct Slot {
  Digest layer;
  std::int32_t number = -1;
};

Result<UniqueFd> open_loop(int number) {
  const std::string path = "/dev/loop" + std::to_string(number);
  return own(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "open " + quoted(path));
}

/// The device of the slot, if it still serves exactly this file, read-only and from its first byte to its last.
UniqueFd reuse(const Slot& slot, const struct stat& file) {
  auto device = open_loop(slot.number);
  if (!device) return {};
  loop_info64 info{};
  // From the open on autoclear cannot free it, so what the kernel says here stays true.
  if (::ioctl(device->get(), LOOP_GET_STATUS64, &info) != 0) return {};
  const bool same = info.lo_device == file.st_dev && info.lo_inode == file.st_ino && info.lo_offset == 0 &&
                    info.lo_sizelimit == 0 && (info.lo_flags & LO_FLAGS_READ_ONLY) != 0;
  return same ? std::move(*device) : UniqueFd();
}

Result<LoopDevice> configure_new(int layer_file) {
  UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control) return Error::from_errno(errno, "open \"/dev/loop-control\"").hint("load the kernel module loop");
  loop_config config{};
  config.fd = static_cast<std::uint32_t>(layer_file);
  config.block_size = 4096;
  config.info.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR;
  for (int attempt = 0; attempt < 256; ++attempt) {
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return Error::from_errno(errno, "find a free loop device");
    auto device = SPC_TRY(open_loop(number));
    if (::ioctl(device.get(), LOOP_CONFIGURE, &config) == 0) return LoopDevice{std::move(device), number, false};
    if (errno != EBUSY) return Error::from_errno(errno, "set up a loop device");  // EBUSY: another step was faster
  }
  return Error(ErrorKind::unavailable, "set up a loop device: no free device");
}

}  // namespace

Result<UniqueFd> open_loop_table(const char* path) {
  return own(::open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600), "open " + quoted(path));
}

Result<LoopDevice> loop_device_of(const Digest& layer, int layer_file, int table) {
  struct stat file {};
  SPC_TRY(check(::fstat(layer_file, &file), "stat a layer"));

  const off_t offset = (layer.bytes[0] << 8 | layer.bytes[1]) * static_cast<off_t>(sizeof(Slot));
  // The slot is locked by an open file description that nobody else has, so until the end of this function or process.
  const auto slots = SPC_TRY(own(::open(itself(table).c_str(), O_RDWR | O_CLOEXEC), "open the table of loop devices"));
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_start = offset;
  range.l_len = sizeof(Slot);
  SPC_TRY(check(::fcntl(slots.get(), F_OFD_SETLKW, &range), "lock the table of loop devices"));
  Slot slot;
  if (::pread(slots.get(), &slot, sizeof slot, offset) == sizeof slot && slot.layer == layer) {
    if (auto device = reuse(slot, file)) return LoopDevice{std::move(device), slot.number, true};
  }
  auto fresh = SPC_TRY(configure_new(layer_file));
  slot = Slot{layer, fresh.number};
  // A slot that cannot be written (the run directory is full) only costs the sharing.
  [[maybe_unused]] const auto written = ::pwrite(slots.get(), &slot, sizeof slot, offset);
  return fresh;
}

}  // namespace spc::agent
