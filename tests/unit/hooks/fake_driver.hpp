#pragma once

#include <elf.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "hooks/hook.hpp"
#include "unit/hooks/elf_maker.hpp"

/// A node with fake GPUs and a fake NVIDIA driver, and an image, in a temporary directory.
/// Libraries are ELF files with only a soname. Device nodes are regular files. Tests that use it
/// have "fake" in their name.
class FakeNode {
 public:
  FakeNode() {
    std::string pattern = (std::filesystem::temp_directory_path() / "spc-fake-gpu-XXXXXX").string();
    top_ = ::mkdtemp(pattern.data());
    std::filesystem::create_directories(image());
  }
  ~FakeNode() { std::filesystem::remove_all(top_); }
  FakeNode(const FakeNode&) = delete;
  FakeNode& operator=(const FakeNode&) = delete;

  [[nodiscard]] std::filesystem::path host() const { return top_ / "host"; }
  [[nodiscard]] std::filesystem::path image() const { return top_ / "image"; }

  void file(const std::string& path, const std::string& text = "") const {
    write(host() / path.substr(1), text);
  }
  void image_file(const std::string& path, const std::string& text = "") const {
    write(image() / path.substr(1), text);
  }
  void link(const std::string& path, const std::string& target) const {
    make_link(host() / path.substr(1), target);
  }
  void image_link(const std::string& path, const std::string& target) const {
    make_link(image() / path.substr(1), target);
  }

  void library(const std::string& path, const std::string& soname,
               std::uint16_t machine = kOwnMachine) const {
    file(path, elf_library(soname, machine));
  }

  void kernel(const std::string& version) const {
    file("/sys/module/nvidia/version", version + "\n");
    file("/dev/nvidiactl");
    file("/dev/nvidia-uvm");
    file("/dev/nvidia-uvm-tools");
  }

  /// Adds a real driver's libraries for compute and monitoring, and some of those for graphics and
  /// video.
  void libraries(const std::string& directory, const std::string& version,
                 std::uint16_t machine = kOwnMachine) const {
    for (const char* stem :
         {"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-encode",
          "libnvidia-eglcore", "libnvidia-opticalflow", "libnvidia-brandnew"}) {
      library(directory + "/" + stem + ".so." + version, std::string(stem) + ".so.1", machine);
      link(directory + "/" + stem + ".so.1", std::string(stem) + ".so." + version);
    }
    library(directory + "/libGLX_nvidia.so." + version, "libGLX_nvidia.so.0", machine);
    library(directory + "/vdpau/libvdpau_nvidia.so." + version, "libvdpau_nvidia.so.1", machine);
    library(directory + "/libnvidia-egl-gbm.so.1.1.0", "libnvidia-egl-gbm.so.1", machine);
    file(directory + "/libnvidia-script.so." + version,
         "/* GNU ld script */");  // the loader of this machine skips it
    library(directory + "/libother.so.1.0", "libother.so.1", machine);
  }

  /// Adds GPU `minor` at PCI bus `bus`. NVIDIA numbers GPUs by bus, not by minor.
  void gpu(unsigned minor, unsigned bus) const {
    char address[16];
    std::snprintf(address, sizeof address, "0000:%02x:00.0", bus);
    const std::string number = std::to_string(minor);
    file("/dev/nvidia" + number);
    file(std::string("/proc/driver/nvidia/gpus/") + address + "/information",
         "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 17\nGPU UUID: \t "
         "GPU-00000000-0000-0000-0000-00000000000" +
             number + "\nVideo BIOS: \t 96.00.74.00.01\nBus Type: \t PCIe\nBus Location: \t " +
             address + "\nDevice Minor: \t " + number + "\n");
  }

  void mig(unsigned gpu, unsigned gi, unsigned ci, unsigned gi_cap, unsigned ci_cap) const {
    const std::string top = "/proc/driver/nvidia/capabilities/gpu" + std::to_string(gpu) +
                            "/mig/gi" + std::to_string(gi);
    capability(top + "/access", gi_cap);
    capability(top + "/ci" + std::to_string(ci) + "/access", ci_cap);
  }

  /// Adds a GPU of another vendor.
  void render(unsigned minor, unsigned card, const std::string& vendor,
              const std::string& address) const {
    const std::string name = "renderD" + std::to_string(minor);
    file("/dev/dri/" + name);
    file("/dev/dri/card" + std::to_string(card));
    const std::string device = "/sys/devices/pci0000:00/" + address;
    file(device + "/vendor", vendor + "\n");
    file(device + "/drm/" + name + "/dev", "");
    file(device + "/drm/card" + std::to_string(card) + "/dev", "");
    link("/sys/class/drm/" + name + "/device", "../../../devices/pci0000:00/" + address);
  }

  /// Returns the context of a step that may open every GPU's device node.
  [[nodiscard]] spc::HookContext context() const {
    spc::HookContext context;
    context.host_root = host().string();
    context.granted_devices.emplace();
    for (const char* directory :
         {"/dev", "/dev/dri", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"}) {
      std::error_code error;
      for (const auto& entry :
           std::filesystem::directory_iterator(host() / (directory + 1), error)) {
        const std::string node = std::string(directory) + "/" + entry.path().filename().string();
        if (!entry.is_directory() && spc::is_gpu_node(node)) context.granted_devices->insert(node);
      }
    }
    context.open_in_image = [root = image().string()](const char* path, int flags) {
      const spc::UniqueFd top(::open(root.c_str(), O_PATH | O_CLOEXEC));
      open_how how{};
      how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC | O_NONBLOCK);
      how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
      return spc::UniqueFd(
          static_cast<int>(::syscall(SYS_openat2, top.get(), path, &how, sizeof how)));
    };
    return context;
  }

 private:
  void capability(const std::string& path, unsigned minor) const {
    file(path, "DeviceFileMinor: " + std::to_string(minor) +
                   "\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
    file("/dev/nvidia-caps/nvidia-cap" + std::to_string(minor));
  }
  static void write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  static void make_link(const std::filesystem::path& path, const std::string& target) {
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::create_symlink(target, path);
  }

  std::filesystem::path top_;
};
