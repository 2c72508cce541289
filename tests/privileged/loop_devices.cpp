#include "loop_devices.hpp"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "base/unique_fd.hpp"

namespace fs = std::filesystem;

namespace spc {

std::vector<int> our_loop_devices() {
  std::vector<int> found;
  struct stat ours {};
  if (::stat("/var/lib", &ours) != 0) return found;
  for (const auto& entry : fs::directory_iterator("/sys/block")) {
    const std::string name = entry.path().filename();
    std::error_code error;
    if (!name.starts_with("loop") || !fs::exists(entry.path() / "loop", error)) continue;
    const UniqueFd device(::open(("/dev/" + name).c_str(), O_RDONLY | O_CLOEXEC));
    loop_info64 info{};
    if (device && ::ioctl(device.get(), LOOP_GET_STATUS64, &info) == 0 &&
        info.lo_device == ours.st_dev) {
      found.push_back(std::stoi(name.substr(4)));
    }
  }
  return found;
}

}  // namespace spc
