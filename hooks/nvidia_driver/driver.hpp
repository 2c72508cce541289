#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "hooks/hook.hpp"

namespace spc {

// --- driver ---

/// The purpose of a driver file: the words of NVIDIA_DRIVER_CAPABILITIES as bits. A file is used if
/// any of its bits is requested. A 32-bit library also needs `for_32_bit` (the word compat32).
enum NvidiaUse : std::uint32_t {
  for_utility = 1,
  for_compute = 2,
  for_video = 4,
  for_graphics = 8,
  for_display = 16,
  for_ngx = 32,
  for_32_bit = 64,
  for_any = 63,  ///< a library in no table, so newer than the tables: wanted for any use
};

/// A shared library of the driver.
struct NvidiaLibrary {
  std::string path;  ///< on the host: with driver_root, without host_root
  std::string file;  ///< libcuda.so.550.54.15
  /// libcuda.so.1, from its dynamic section; empty: a module that programs are not linked with
  std::string soname;
  std::string folder;  ///< below the library directory: vdpau, gbm, or empty
  std::uint32_t uses = 0;
  bool is_32_bit = false;
  bool has_plain_link = false;  ///< the host has libcuda.so beside it

  bool operator==(const NvidiaLibrary&) const = default;
};

/// A program, firmware, configuration file or socket of the driver.
struct NvidiaFile {
  std::string path;    ///< on the host: with driver_root, without host_root
  std::string target;  ///< where programs look for it
  std::uint32_t uses = 0;

  bool operator==(const NvidiaFile&) const = default;
};

/// A MIG partition of a GPU: a process needs the nodes of its GPU instance and compute instance to
/// use it.
struct NvidiaMig {
  unsigned gpu_instance = 0, compute_instance = 0;
  std::string gpu_instance_node, compute_instance_node;  ///< /dev/nvidia-caps/nvidia-capN

  bool operator==(const NvidiaMig&) const = default;
};

struct NvidiaGpu {
  unsigned minor = 0;
  std::string node;         ///< /dev/nvidia<minor>
  std::string pci_address;  ///< 0000:1b:00.0; empty if unknown
  /// uuid: GPU-...; empty if unknown, as before the first use without persistence mode
  std::string uuid, model;
  std::vector<std::string> dri;  ///< /dev/dri/cardN, /dev/dri/renderDN of this address
  bool mig_mode = false;         ///< MIG mode is on
  std::vector<NvidiaMig> migs;   ///< by number

  bool operator==(const NvidiaGpu&) const = default;
};

/// NVIDIA's driver on this node. The order of the lists does not depend on that of directories.
struct NvidiaDriver {
  std::string version;          ///< of the kernel driver: 550.54.15; of libcuda if that is unknown
  std::string library_version;  ///< of libcuda; empty: not found
  /// directories of libcuda on the host; the first of each word size
  std::vector<std::string> library_directories;
  std::vector<NvidiaLibrary> libraries;
  std::vector<NvidiaFile> binaries, firmware, config_files;
  std::vector<NvidiaFile> sockets;  ///< of nvidia-persistenced and of the fabric manager

  /// by PCI address: the order of Slurm, of nvidia-smi and of CUDA_DEVICE_ORDER=PCI_BUS_ID
  std::vector<NvidiaGpu> gpus;
  /// those of /dev/nvidiactl, -uvm, -uvm-tools and -modeset that exist
  std::vector<NvidiaFile> control_nodes;
  /// for mig/config and mig/monitor, in /dev/nvidia-caps
  std::vector<std::string> mig_control_nodes;
  std::vector<std::string> imex_channels;   ///< /dev/nvidia-caps-imex-channels/channelN
  std::vector<std::string> nvswitch_nodes;  ///< /dev/nvidia-nvswitch*
  std::vector<std::string> fs_nodes;        ///< GPUDirect Storage: /dev/nvidia-fs*
  std::string gdrcopy_node;                 ///< /dev/gdrdrv or empty

  std::vector<std::string> notes;  ///< the path of the driver, and missing parts

  /// Returns whether libraries and kernel driver match, which all uses need.
  [[nodiscard]] bool versions_agree() const {
    return !version.empty() && version == library_version;
  }

  bool operator==(const NvidiaDriver&) const = default;
};

/// Finds the driver without executing or loading any of it, and without opening a device.
/// `host_root` is the prefix of every path; `driver_root` is the location of the driver's files
/// outside the system directories (config.toml), or empty. Without a driver: an empty value whose
/// notes list the searched places.
NvidiaDriver discover_nvidia(const std::string& host_root, const std::string& driver_root);

/// Finds only the GPUs, control nodes and instances, without the files.
void discover_nvidia_devices(const std::string& host_root, NvidiaDriver& driver);

/// Returns a file of a running fabric manager, or one in a directory that users may not read; empty
/// if there is none. The manager may have no command socket, but always has a PID file. A manager
/// in another container leaves neither.
std::string fabric_manager_trace(const std::string& host_root);

/// Returns for_utility for "utility" and so on. "all" means everything but compat32. Empty for an
/// unknown word.
std::optional<std::uint32_t> nvidia_use_of(std::string_view word);

/// Returns the purpose of the library with this file name (libcuda.so.550.54.15).
std::uint32_t nvidia_library_use(std::string_view file);

/// Returns the CUDA version that a driver supports by itself, as 1204 for 12.4; 0 if the driver is
/// newer than the table.
unsigned cuda_version_of_driver(std::string_view version);

// --- cuda compat ---

/// The decision whether an image's own libcuda (NVIDIA's forward compatibility package) replaces
/// the driver's.
struct CudaCompat {
  /// in the container, searched before all others; empty: the driver's own libcuda is used
  std::string directory;
  std::string version;  ///< of the libcuda there; empty: there is no usable one
  std::string reason;   ///< why it is used or not, for the user; empty: the image has none
};

/// Adds the directory and the reason.
void add_compat(const CudaCompat& compat, Edits& edits);

/// Searches /usr/local/cuda/compat of the image, or its lib.real, which must have exactly one
/// libcuda.so.X.Y. The note in that library decides. Without a note, it must have a later major
/// version than the node's driver. These are the rules of NVIDIA's toolkit
/// (cmd/nvidia-cdi-hook/cudacompat). Mounts and executes nothing, and links do not lead out of the
/// image. `why_not`: result of why_no_cuda_compat(); unless it is empty, the image's libcuda is not
/// used.
CudaCompat cuda_compat_of_image(const HookContext& context, std::string_view driver_version,
                                std::string_view why_not = {});

/// Returns the reason why no image's libcuda is used on this node: `cuda_compat` in config.toml, or
/// a GPU that the step can open does not support it. Empty if neither applies.
std::string why_no_cuda_compat(const HookContext& context,
                               const std::vector<NvidiaGpu>& accessible);

}  // namespace spc
