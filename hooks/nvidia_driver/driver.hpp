#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// What a part of NVIDIA's driver is for: the words of NVIDIA_DRIVER_CAPABILITIES as bits. A part is wanted if any of its bits
/// is; a 32-bit library also needs `for_32_bit` (the word compat32).
enum NvidiaUse : std::uint32_t {
  for_utility = 1,
  for_compute = 2,
  for_video = 4,
  for_graphics = 8,
  for_display = 16,
  for_ngx = 32,
  for_32_bit = 64,
  for_any = 63,  ///< a library that is in no table, so newer than these: wanted with whatever is wanted
};

/// A shared library of the driver.
struct NvidiaLibrary {
  std::string path;    ///< on the host: with driver_root, without host_root
  std::string file;    ///< libcuda.so.550.54.15
  std::string soname;  ///< libcuda.so.1, as its dynamic section has it; empty: a module that nobody links with
  std::string folder;  ///< below the directory of libraries: vdpau, gbm, or empty
  std::uint32_t uses = 0;
  bool is_32_bit = false;

  bool operator==(const NvidiaLibrary&) const = default;
};

/// A program, firmware, configuration file or socket of the driver.
struct NvidiaFile {
  std::string path;    ///< on the host: with driver_root, without host_root
  std::string target;  ///< where programs look for it
  std::uint32_t uses = 0;

  bool operator==(const NvidiaFile&) const = default;
};

/// A part of a GPU that MIG has made: what lets a process use it are the nodes of its GPU instance and compute instance.
struct NvidiaMig {
  unsigned gpu_instance = 0, compute_instance = 0;
  std::string gpu_instance_node, compute_instance_node;  ///< /dev/nvidia-caps/nvidia-capN

  bool operator==(const NvidiaMig&) const = default;
};

struct NvidiaGpu {
  unsigned minor = 0;
  std::string node;              ///< /dev/nvidia<minor>
  std::string pci_address;       ///< 0000:1b:00.0; empty if the driver does not say
  std::string uuid, model;       ///< GPU-...; empty if the driver does not say
  std::vector<std::string> dri;  ///< /dev/dri/cardN, /dev/dri/renderDN of this address
  bool mig_mode = false;         ///< has instances
  std::vector<NvidiaMig> migs;   ///< in the order of their numbers

  bool operator==(const NvidiaGpu&) const = default;
};

/// What there is of NVIDIA's driver on this node. Lists are in an order that does not depend on that of directories.
struct NvidiaDriver {
  std::string version;                           ///< of the kernel's driver: 550.54.15; of libcuda if the kernel does not say
  std::string library_version;                   ///< of libcuda; empty: none was found
  std::vector<std::string> library_directories;  ///< where libcuda lies, on the host; the first of each width
  std::vector<NvidiaLibrary> libraries;
  std::vector<NvidiaFile> binaries, firmware, config_files;
  std::vector<NvidiaFile> sockets;  ///< of nvidia-persistenced and of the fabric manager

  std::vector<NvidiaGpu> gpus;  ///< by PCI address: the order of Slurm, of nvidia-smi and of CUDA_DEVICE_ORDER=PCI_BUS_ID
  std::vector<NvidiaFile> control_nodes;       ///< /dev/nvidiactl, -uvm, -uvm-tools, -modeset, as far as they exist
  std::vector<std::string> mig_control_nodes;  ///< what mig/config and mig/monitor need, in /dev/nvidia-caps
  std::vector<std::string> imex_channels;      ///< /dev/nvidia-caps-imex-channels/channelN
  std::vector<std::string> nvswitch_nodes;     ///< /dev/nvidia-nvswitch*
  std::vector<std::string> fs_nodes;           ///< GPUDirect Storage: /dev/nvidia-fs*
  std::string gdrcopy_node;                    ///< /dev/gdrdrv or empty

  std::vector<std::string> notes;  ///< where it was found, and what is missing

  /// Whether libraries and kernel belong together, without which nothing works.
  [[nodiscard]] bool versions_agree() const { return !version.empty() && version == library_version; }

  bool operator==(const NvidiaDriver&) const = default;
};

/// Looks for the driver without executing or loading any of it, and without opening a device. `host_root` comes before every
/// path; `driver_root` is where the driver's files lie if not in the host's own places (config.toml), or empty. Without a
/// driver: an empty value whose notes say where it was looked for.
NvidiaDriver discover_nvidia(const std::string& host_root, const std::string& driver_root);

/// The GPUs, control nodes and instances alone, without the files.
void discover_nvidia_devices(const std::string& host_root, NvidiaDriver& driver);

/// for_utility of "utility" and so on; "all" is everything but compat32. Nothing if there is no such word.
std::optional<std::uint32_t> nvidia_use_of(std::string_view word);

/// What the library of this file name (libcuda.so.550.54.15) is for.
std::uint32_t nvidia_library_use(std::string_view file);

/// The CUDA version that a driver supports by itself, as 1204 for 12.4; 0 if the driver is newer than the table.
unsigned cuda_version_of_driver(std::string_view version);

}  // namespace spc
