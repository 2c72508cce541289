#include "container/agent/loop_device.hpp"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace spc {
namespace {

/// One slot of the table; two layers that fall on one slot only lose the sharing of the earlier one.
struct Slot {
  Digest layer;
  std::int32_t number = -1;
  std::uint32_t used = 0;
};

/// Holds the slot for this process; a lock of the open file description, so that it ends with the process at the latest.
class SlotLock {
 public:
  SlotLock(int table, off_t offset) : table_(table) {
    range_.l_type = F_WRLCK;
    range_.l_whence = SEEK_SET;
    range_.l_start = offset;
    range_.l_len = sizeof(Slot);
    while (::fcntl(table_, F_OFD_SETLKW, &range_) != 0 && errno == EINTR) {
    }
  }
  SlotLock(const SlotLock&) = delete;
  SlotLock& operator=(const SlotLock&) = delete;
  ~SlotLock() {
    range_.l_type = F_UNLCK;
    ::fcntl(table_, F_OFD_SETLK, &range_);
  }

 private:
  int table_;
  struct flock range_ {};
};

Result<UniqueFd> open_loop(int number, int flags) {
  const std::string path = "/dev/loop" + std::to_string(number);
  UniqueFd device(::open(path.c_str(), flags | O_CLOEXEC));
  if (!device) return Error::from_errno(errno, "open " + quoted(path));
  return device;
}

/// The device of the slot, if it still serves exactly this file, read-only and from its first byte to its last.
UniqueFd reuse(const Slot& slot, const struct stat& file) {
  auto device = open_loop(slot.number, O_RDONLY);
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
    auto device = SPC_TRY(open_loop(number, O_RDONLY));
    if (::ioctl(device.get(), LOOP_CONFIGURE, &config) == 0) return LoopDevice{std::move(device), number, false};
    if (errno != EBUSY) return Error::from_errno(errno, "set up a loop device");  // EBUSY: another step was faster
  }
  return Error(ErrorKind::unavailable, "set up a loop device: all that were free have been taken meanwhile");
}

}  // namespace

Result<UniqueFd> open_loop_table(const char* path) {
  UniqueFd table(::open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!table) return Error::from_errno(errno, "open " + quoted(path));
  return table;
}

Result<LoopDevice> loop_device_of(const Digest& layer, int layer_file, int table) {
  struct stat file {};
  if (::fstat(layer_file, &file) != 0) return Error::from_errno(errno, "stat a layer");

  const off_t offset = (layer.bytes[0] << 8 | layer.bytes[1]) * static_cast<off_t>(sizeof(Slot));
  const SlotLock lock(table, offset);
  Slot slot;
  if (::pread(table, &slot, sizeof slot, offset) == sizeof slot && slot.used != 0 && slot.layer == layer) {
    if (auto device = reuse(slot, file)) return LoopDevice{std::move(device), slot.number, true};
  }
  auto fresh = SPC_TRY(configure_new(layer_file));
  slot = Slot{layer, fresh.number, 1};
  // A slot that cannot be written (the run directory is full) only costs the sharing.
  [[maybe_unused]] const auto written = ::pwrite(table, &slot, sizeof slot, offset);
  return fresh;
}

}  // namespace spc
