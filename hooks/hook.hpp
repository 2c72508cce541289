#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A file or directory of the host to mount in the container, or a new tmpfs.
struct MountEdit {
  std::string
      source;  ///< absolute, on the host; opened with the user's rights only. Empty: a new tmpfs
  std::string target;  ///< absolute, in the container; `create` may change it, or empty it to drop
                       ///< the mount
  bool read_only = true;
  bool no_exec = false;
  bool optional = false;   ///< skip silently if missing; otherwise a missing source fails the step
  std::uint64_t size = 0;  ///< of a tmpfs, in bytes; 0: the size limit of the writable layer

  bool operator==(const MountEdit&) const = default;
};

/// A device node of the host. The container has the host's /dev, so one that keeps its name needs
/// no mount; access is controlled by the step's device cgroup.
struct DeviceEdit {
  std::string path;    ///< in the container
  std::string source;  ///< on the host; empty: the same
  bool optional = false;

  bool operator==(const DeviceEdit&) const = default;
};

struct SymlinkEdit {
  std::string path;    ///< in the container; replaces anything but a directory
  std::string target;  ///< as stored in the link

  bool operator==(const SymlinkEdit&) const = default;
};

/// A small file, written by the user in the container; replaces an existing one.
struct FileEdit {
  std::string path;
  std::string content;
  mode_t mode = 0644;

  bool operator==(const FileEdit&) const = default;
};

/// A shared library that the loader must find by its soname: an entry of /etc/ld.so.cache, and the
/// link beside the file.
struct LibraryEdit {
  std::string soname;  ///< libcuda.so.1
  std::string path;    ///< in the container: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
  bool before = true;  ///< precedes a library of the image with the same soname; false: only if the
                       ///< image has none
  std::uint16_t machine = 0;  ///< its e_machine (loader/elf.hpp); 0: the node's

  bool operator==(const LibraryEdit&) const = default;
};

/// A directory of the image that the loader must search: before all others or after.
struct LibraryDirectoryEdit {
  std::string path;
  bool before = true;

  bool operator==(const LibraryDirectoryEdit&) const = default;
};

/// A soft limit of the tasks, up to the hard limit; named as in setrlimit(2) without RLIMIT_, in
/// lower case: memlock, nofile, stack, core.
struct LimitEdit {
  std::string name;
  std::uint64_t soft = 0;  ///< UINT64_MAX: unlimited

  bool operator==(const LimitEdit&) const = default;
};

/// A program of the node, owned by root like all directories above it, that a hook wants to run: as
/// the user, on the host, before the container is entered, with the state that OCI runtimes pass to
/// hooks on standard input.
struct ProgramEdit {
  std::string path;
  std::vector<std::string> args;  ///< argv; empty: the path
  std::vector<std::string> env;   ///< NAME=VALUE, in addition to that of all hooks
  std::uint64_t timeout = 0;      ///< seconds; 0: hook_timeout in config.toml

  bool operator==(const ProgramEdit&) const = default;
};

/// What a built-in hook finds on the host in `prepare` and keeps for its own `create`, which cannot
/// see the host: derive a struct from this.
struct HostFindings {
  virtual ~HostFindings() = default;
};

/// The changes a hook wants: a superset of CDI's containerEdits. The hook changes nothing itself;
/// the engine checks, merges and applies all edits once, with the user's rights only.
struct Edits {
  /// Applied in the order unset, set, prepend, default. Variables set or kept by --container-env
  /// never change.
  struct Environment {
    std::set<std::string> unset;
    std::map<std::string, std::string> set;
    std::map<std::string, std::string> prepend;   ///< prepended to a colon-separated list
    std::map<std::string, std::string> defaults;  ///< for unset variables
    bool operator==(const Environment&) const = default;
  } environment;

  // From `prepare` only; create() may drop or move, but not add.
  std::vector<MountEdit> mounts;
  std::vector<DeviceEdit> devices;
  std::vector<std::string>
      denied_devices;  ///< host device nodes that cannot be opened in the container

  std::vector<SymlinkEdit> symlinks;
  std::vector<FileEdit> files;
  std::vector<std::string> directories;  ///< in the container, created if missing
  std::vector<LibraryEdit> libraries;
  std::vector<LibraryDirectoryEdit> library_directories;
  std::vector<LimitEdit> limits;
  std::vector<ProgramEdit> programs;  ///< from `prepare` only

  std::vector<std::string>
      notes;  ///< for --container-explain: what was found, and why something was not done
  std::vector<std::string> warnings;              ///< shown to the user, once per step and node
  std::map<std::string, std::string> remembered;  ///< from prepare() to create() of the same hook
  std::string refusal;  ///< the step cannot run: reason and hint. Empty: it can

  std::shared_ptr<const HostFindings>
      found;  ///< from `prepare` of a built-in hook; stays in the process

  /// What the same hook found in `prepare`; nullptr if it kept nothing.
  template <typename Findings>
  [[nodiscard]] const Findings* found_as() const {
    return dynamic_cast<const Findings*>(found.get());
  }

  bool operator==(const Edits&) const = default;
};

/// Whether granted_devices covers it: /dev/nvidia*, /dev/kfd, /dev/dri/*.
bool is_gpu_node(std::string_view node);
/// Whether it stands for a MIG partition: such nodes have mode 0444 (DeviceFileMode 292) and are
/// opened for reading only.
bool is_mig_capability(std::string_view node);

/// What a hook is told. All of it is data: nothing from the image or the job is executed or
/// trusted.
struct HookContext {
  using Variables = std::map<std::string, std::string>;

  Variables job;                         ///< the job's environment; in task() that of the task
  Variables image;                       ///< variables set by the image; from `create` on
  Variables environment;                 ///< task() only: the task's environment without hooks
  std::string image_name, image_digest;  ///< from `create` on; the digest of an image file is empty
  std::multimap<std::string, std::string, std::less<>>
      settings;  ///< from config.toml: KEY, repeated for a list

  uid_t uid = 0;
  gid_t gid = 0;
  std::string user, home;  ///< as on the host

  std::optional<bool> gpu;           ///< --container-gpu, --no-container-gpu
  std::vector<std::string> devices;  ///< --container-device: CDI names, VENDOR/CLASS=NAME
  std::vector<std::string> command;  ///< of the tasks, if known
  bool has_bind_mounts = false;      ///< the user requested files or directories of the host
  std::string mpi;                   ///< --container-mpi: image, host, or empty
  bool remap_root = false, own_net = false, own_ipc = false, own_pid = false, own_uts = false;
  bool own_container = false;  ///< each task has its own container: --container-private
  bool writable = true;
  bool mounts_home = false;

  std::string host_root;  ///< prefix of every host path; empty except in tests and for drivers in a
                          ///< separate root
  /// GPU device nodes (is_gpu_node) that the step may open for reading and writing
  /// (is_mig_capability: for reading), from its cgroup, which can allow more than this task's;
  /// empty: not determined. may_open() considers both.
  std::optional<std::set<std::string>> granted_devices;

  /// Opens a file of the image, in `create` and `task`; links are followed in the container, /proc
  /// links out of it are not. Empty with errno on failure. Always O_CLOEXEC | O_NONBLOCK: an image
  /// may contain a FIFO.
  std::function<UniqueFd(const char* path, int flags)> open_in_image;

  /// The last setting of this key, or `otherwise`.
  [[nodiscard]] std::string setting(std::string_view key, std::string_view otherwise = "") const;
  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const;
  [[nodiscard]] std::vector<std::string> settings_of(std::string_view key) const;
  /// A variable of the job, of the image; empty if unset.
  [[nodiscard]] const std::string* of_job(std::string_view name) const;
  [[nodiscard]] std::optional<std::uint32_t> job_number(
      std::string_view name) const;  ///< nothing: not set or not a number
  [[nodiscard]] const std::string* of_image(std::string_view name) const;
  /// Whether the step may open this device node of the host. It is not opened: that could wake up a
  /// GPU.
  [[nodiscard]] bool may_open(const std::string& node) const;
  /// A regular file of the image, at most `most` bytes; empty if it is missing, too large or not a
  /// file.
  [[nodiscard]] std::optional<std::string> image_file(const char* path,
                                                      std::size_t most = 1 << 20) const;
};

/// A built-in hook: functions from a context to edits. Each may be null. An error fails the step
/// and names the hook.
struct Hook {
  const char* name;  ///< NN-WORD: the stem, which determines the order, and by which a site
                     ///< replaces or disables it
  const char* says;  ///< summary, one line
  /// Whether it has anything to do; considers the context only, no files.
  bool (*when)(const HookContext&) = nullptr;
  /// Once per step and node, on the host, as the user: requests everything that could be needed,
  /// before the image is known.
  Result<Edits> (*prepare)(const HookContext&) = nullptr;
  /// Then, in the container, before anything is mounted: selects from that, and adds. Gets the
  /// output of prepare.
  Result<void> (*create)(const HookContext&, Edits&) = nullptr;
  /// Each task, in the container, just before exec: environment, limits and warnings only.
  Result<Edits> (*task)(const HookContext&) = nullptr;
};

}  // namespace spc
