#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/process/child.hpp"
#include "base/process/kernel.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/layer.hpp"

namespace spc {

// --- kernel support ---

/// Returns whether the running kernel can mount a squashfs compressed with lz4, according to its
/// configuration (a file below `root`). Debian and Ubuntu kernels can, Red Hat's cannot. False if
/// the configuration is not known.
bool reads_lz4(const std::string& root = "");

/// Returns the upper limit of kernel memory, in bytes, of one mounted squashfs layer. No cgroup is
/// charged for it: caches, and decompressors with a block each for every possible processor, unless
/// the kernel is configured for a single decompressor. Files are read below `root`.
std::uint64_t memory_of_squashfs(LayerCompression compression, const std::string& root = "");

/// Makes the kernel load its erofs module, as any mount of an erofs would.
void ask_for_erofs();

/// Returns whether the kernel has erofs and supports idmapped mounts for it but not for squashfs:
/// Linux 5.19 to 6.1. `filesystems` is the running kernel's list, which names a module once it is
/// loaded. `ask` loads it.
bool maps_only_erofs(KernelVersion kernel = running_kernel(),
                     const std::string& filesystems = "/proc/filesystems",
                     void (*ask)() = ask_for_erofs);

/// Returns whether the kernel has erofs with idmapped mounts and would need more than 8 MiB of its
/// own memory for each squashfs (`memory`).
bool saves_memory_by_erofs(std::uint64_t memory = memory_of_squashfs(LayerCompression::lz4),
                           KernelVersion kernel = running_kernel(),
                           const std::string& filesystems = "/proc/filesystems",
                           void (*ask)() = ask_for_erofs);

/// Returns whether the file system type supports reflinks (ioctl_ficlone(2)), so that copies of
/// layers need no space. An XFS may have been created without them, which the first start detects.
bool files_share_blocks(const char* place);

/// Returns whether the directory is on a block device of this machine. False for network file
/// systems and those in memory, and for Btrfs, which has device numbers of its own.
bool is_on_local_disk(const std::string& directory);

// --- layer process ---

/// A running `layer-writer`, seen from the process that feeds it: `import`, for which the agent has
/// started it, or the process that started it itself. The process ends with this object and with
/// the thread that started it (PDEATHSIG is tied to the thread). Start and finish a layer in one
/// thread, or in one that outlives it.
class LayerProcess {
 public:
  /// The caller's ends of the program's descriptors, and a function that waits for its end.
  struct Ends {
    UniqueFd input, report, below;
    std::function<Result<ExitStatus>()> wait;
  };
  explicit LayerProcess(Ends ends) : ends_(std::move(ends)) {}

  /// Starts `layer-writer` to convert the layer without layers below it. `output_file` is an empty
  /// regular file, open for reading and writing; the caller owns it. The child inherits only this
  /// file, the pipes and descriptors 1 and 2. `program`: its path; by default, the program beside
  /// this one or the installed one.
  static Result<LayerProcess> start(int output_file, const LayerLimits& limits = {},
                                    const std::string& program = {});

  /// Returns the input for the compressed blob: a pipe of 1 MiB if the system allows it. EPIPE
  /// means that the process failed, and finish() returns the reason. SIGPIPE must be ignored. Make
  /// it non-blocking for poll.
  [[nodiscard]] int input() const { return ends_.input.get(); }
  /// Marks the end of the blob.
  void close_input() { ends_.input.reset(); }
  /// Becomes readable when finish() will not block.
  [[nodiscard]] int result_descriptor() const { return ends_.report.get(); }

  /// Becomes readable, once, when the process requests the layers below; give_below() answers. -1:
  /// the process never requests them.
  [[nodiscard]] int below_descriptor() const { return ends_.below.get(); }
  /// Sends the layers below, bottom layer first. The caller keeps its descriptors.
  Result<void> give_below(std::span<const int> layers);

  /// Closes the input and waits for the process. After success the image is complete, and the
  /// caller has to check diff_id. An Error describes how the process ended.
  Result<ConvertedLayer> finish();

 private:
  Ends ends_;
};

/// A `layer-writer` that extracts an image's fact sheet from the files of its layers, in its
/// sandbox. SIGPIPE must be ignored.
class FactsProcess {
 public:
  /// Wraps a process that was started with kLayerFacts and waits for the layers.
  explicit FactsProcess(LayerProcess::Ends ends) : ends_(std::move(ends)) {}
  /// Sends all layers of the image once, bottom layer first. The caller keeps its descriptors.
  Result<void> give(std::span<const int> layers);
  /// Returns records of convert/facts.hpp if they arrive within `patience`.
  Result<std::string> finish(std::chrono::milliseconds patience);

 private:
  LayerProcess::Ends ends_;
};

// --- image facts ---

/// The fact sheet of an image that is being pulled. It is extracted while the last layers are
/// written back and verified. An import waits at most one second more for it. A start does not need
/// it: failures here are no errors, and the image is stored without one.
class ImageFacts {
 public:
  /// `start`: lets the agent start layer-writer with kLayerFacts.
  explicit ImageFacts(std::function<Result<LayerProcess::Ends>()> start)
      : start_(std::move(start)) {}
  /// Starts the process when the last layer has begun, so that it is ready when the layers are.
  void prepare();
  /// Returns whether read() has been called.
  [[nodiscard]] bool is_read() const { return read_; }
  /// Sends all layers of the image in their final form, bottom layer first. The caller keeps its
  /// descriptors.
  void read(std::span<const int> layers);
  /// Returns records of convert/facts.hpp. Empty if the process has failed or takes longer than the
  /// rest of the import.
  std::string records();

 private:
  std::function<Result<LayerProcess::Ends>()> start_;
  bool prepared_ = false, read_ = false;
  std::optional<FactsProcess> process_;
};

}  // namespace spc
