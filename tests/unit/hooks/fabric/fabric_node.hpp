#pragma once

#include <fcntl.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "hooks/fabric/fabric.hpp"
#include "unit/has.hpp"
#include "unit/hooks/elf_maker.hpp"

namespace fs = std::filesystem;
using namespace spc;

/// A node and an image, as directories.
struct FabricNode {
  fs::path root, image;
  HookContext context;

  FabricNode() {
    std::string pattern = (fs::temp_directory_path() / "spc-fabric-XXXXXX").string();
    root = fs::path(::mkdtemp(pattern.data())) / "node";
    image = root.parent_path() / "image";
    fs::create_directories(root);
    fs::create_directories(image);
    context.host_root = root.string();
    const fs::path inside = image;
    context.open_in_image = [inside](const char* path, int flags) {
      return UniqueFd(::open((inside.string() + path).c_str(), flags | O_CLOEXEC));
    };
  }
  ~FabricNode() { fs::remove_all(root.parent_path()); }
  FabricNode(const FabricNode&) = delete;
  FabricNode& operator=(const FabricNode&) = delete;

  static void write_to(const fs::path& place, const std::string& path, const std::string& text) {
    const fs::path file = place / path.substr(1);
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }
  void write(const std::string& path, const std::string& text = "") const {
    write_to(root, path, text);
  }
  void write_image(const std::string& path, const std::string& text = "") const {
    write_to(image, path, text);
  }

  /// Adds an adapter of a PCI device as the kernel shows it. `number`: of its device nodes; -1:
  /// none.
  void add_adapter(const std::string& name, const std::string& module, const std::string& address,
                   int number) const {
    const std::string device = "/sys/devices/pci0000:00/" + address;
    write(device + "/vendor", "0x15b3\n");
    write("/sys/bus/pci/drivers/" + module + "/uevent");
    fs::create_symlink("../../../bus/pci/drivers/" + module, root / (device + "/driver").substr(1));
    // rdma_port_get_link_layer() in the kernel: EFA's link layer is unspecified
    write("/sys/class/infiniband/" + name + "/ports/1/link_layer",
          module == "efa" ? "Unknown\n" : "InfiniBand\n");
    fs::create_symlink("../../../devices/pci0000:00/" + address,
                       root / ("sys/class/infiniband/" + name + "/device"));
    if (number < 0) return;
    write("/sys/class/infiniband_verbs/abi_version", "6\n");
    write("/sys/class/infiniband_verbs/uverbs" + std::to_string(number) + "/ibdev", name + "\n");
    write("/sys/class/infiniband_mad/umad" + std::to_string(number) + "/ibdev", name + "\n");
    write("/dev/infiniband/uverbs" + std::to_string(number));
    write("/dev/infiniband/umad" + std::to_string(number));
    write("/dev/infiniband/rdma_cm");
  }
  void two_adapters() const {
    add_adapter("mlx5_0", "mlx5_core", "0000:1b:00.0", 0);
    add_adapter("mlx5_1", "mlx5_core", "0000:3d:00.0", 1);
  }
  /// Adds the libraries of a Debian image with rdma-core and NCCL.
  void image_with_verbs() const {
    write_image("/usr/lib/x86_64-linux-gnu/libibverbs.so.1");
    write_image("/usr/lib/aarch64-linux-gnu/libibverbs.so.1");
    write_image("/etc/libibverbs.d/mlx5.driver", "driver mlx5\n");
  }
  void of_two_nodes() {
    context.job["SLURM_STEP_NUM_TASKS"] = "4";
    context.job["SLURM_STEP_NUM_NODES"] = "2";
    context.job["SLURM_STEP_TASKS_PER_NODE"] = "2(x2)";
    context.job["SLURM_NODEID"] = "0";
    context.job["SLURM_LOCALID"] = "0";
  }

  [[nodiscard]] Edits start(const Hook& hook) const {
    Edits edits = *hook.prepare(context);
    if (edits.refusal.empty() && hook.create != nullptr) REQUIRE(hook.create(context, edits));
    return edits;
  }
};

/// Removes lines that depend on this machine's limits.
inline std::vector<std::string> but_for_limits(std::vector<std::string> warnings) {
  std::erase_if(warnings, [](const std::string& line) {
    return line.find("can be locked") != std::string::npos;
  });
  return warnings;
}
