#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <iterator>
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

// --- sort few ---

/// Sorts like std::stable_sort, for lists of some tens at most; the code is a tenth as large.
template <typename List, typename Before>
void sort_few(List& list, const Before& before) {
  for (auto next = list.begin(); next != list.end(); ++next) {
    auto one = std::move(*next);
    auto place = next;
    for (; place != list.begin() && before(one, *std::prev(place)); --place)
      *place = std::move(*std::prev(place));
    *place = std::move(one);
  }
}

// --- text ---

/// Returns the parts of a separated list, without empty ones.
std::vector<std::string> parts_of(std::string_view list, char separator = ',');

// --- hook ---

/// A file or directory of the host to mount in the container, or a new tmpfs.
struct MountEdit {
  /// absolute, on the host; opened with the user's rights only. Empty: a new tmpfs
  std::string source;
  /// absolute, in the container; `create` may change it, or empty it to drop the mount
  std::string target;
  bool read_only = true;
  bool no_exec = false;
  bool optional = false;   ///< skip silently if missing; otherwise a missing source fails the step
  std::uint64_t size = 0;  ///< of a tmpfs, in bytes; 0: the size limit of the writable layer

  bool operator==(const MountEdit&) const = default;
};

/// A device node of the host. The container has the host's /dev, so a node that keeps its name
/// needs no mount. The step's device cgroup controls access.
struct DeviceEdit {
  std::string path;    ///< in the container
  std::string source;  ///< on the host; empty: same as `path`
  bool optional = false;

  bool operator==(const DeviceEdit&) const = default;
};

struct SymlinkEdit {
  std::string path;    ///< in the container; replaces any file except a directory
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
  /// precedes a library of the image with the same soname; false: used only if the image has none
  bool before = true;
  std::uint16_t machine = 0;  ///< its e_machine (loader/elf.hpp); 0: the node's

  bool operator==(const LibraryEdit&) const = default;
};

/// A directory of the image that the loader must search, before all others or after them.
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

/// A program of the node that a hook requests to run as the user, on the host, before the container
/// is entered. The program and all directories above it must be owned by root. Its standard input
/// is the state that OCI runtimes pass to hooks.
struct ProgramEdit {
  std::string path;
  std::vector<std::string> args;  ///< argv; empty: the path
  std::vector<std::string> env;   ///< NAME=VALUE, added to the environment of all hooks
  std::uint64_t timeout = 0;      ///< seconds; 0: hook_timeout in config.toml

  bool operator==(const ProgramEdit&) const = default;
};

/// Findings of a built-in hook on the host in `prepare`, kept for its own `create`, which cannot
/// see the host. Derive a struct from this.
struct HostFindings {
  virtual ~HostFindings() = default;
};

/// The changes that a hook requests: a superset of CDI's containerEdits. The hook changes nothing
/// itself: the engine checks, merges and applies all edits once, with the user's rights only.
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

  // From `prepare` only; create() may drop or move mounts, but not add any.
  std::vector<MountEdit> mounts;
  std::vector<DeviceEdit> devices;
  /// host device nodes that cannot be opened in the container
  std::vector<std::string> denied_devices;

  std::vector<SymlinkEdit> symlinks;
  std::vector<FileEdit> files;
  std::vector<std::string> directories;  ///< in the container, created if missing
  std::vector<LibraryEdit> libraries;
  std::vector<LibraryDirectoryEdit> library_directories;
  std::vector<LimitEdit> limits;
  std::vector<ProgramEdit> programs;  ///< from `prepare` only

  /// for --container-explain: findings, and reasons for omitted actions
  std::vector<std::string> notes;
  std::vector<std::string> warnings;              ///< shown to the user, once per step and node
  std::map<std::string, std::string> remembered;  ///< from prepare() to create() of the same hook
  std::string refusal;  ///< reason and hint why the step cannot run; empty: it can

  /// from `prepare` of a built-in hook; stays in the process
  std::shared_ptr<const HostFindings> found;

  /// Returns the findings of the same hook in `prepare`; nullptr if it kept none.
  template <typename Findings>
  [[nodiscard]] const Findings* found_as() const {
    return dynamic_cast<const Findings*>(found.get());
  }

  bool operator==(const Edits&) const = default;
};

/// Returns whether granted_devices covers the node: /dev/nvidia*, /dev/kfd, /dev/dri/*.
bool is_gpu_node(std::string_view node);
/// Returns whether the node represents a MIG partition: such nodes have mode 0444 (DeviceFileMode
/// 292) and are opened for reading only.
bool is_mig_capability(std::string_view node);

/// Input of a hook. All of it is data: nothing from the image or the job is executed or trusted.
struct HookContext {
  using Variables = std::map<std::string, std::string>;

  Variables job;                         ///< the job's environment; in task() that of the task
  Variables image;                       ///< variables set by the image; from `create` on
  Variables environment;                 ///< task() only: the task's environment without hooks
  std::string image_name, image_digest;  ///< from `create` on; the digest of an image file is empty
  /// from config.toml: KEY, repeated for a list
  std::multimap<std::string, std::string, std::less<>> settings;

  uid_t uid = 0;
  gid_t gid = 0;
  std::string user, home;  ///< the user's name and home on the host

  std::optional<bool> gpu;           ///< --container-gpu, --no-container-gpu
  std::vector<std::string> devices;  ///< --container-device: CDI names, VENDOR/CLASS=NAME
  std::vector<std::string> command;  ///< command of the tasks, if known
  bool has_bind_mounts = false;      ///< the user requested files or directories of the host
  std::string mpi;                   ///< --container-mpi: image, host, or empty
  Variables annotations;             ///< of the environment file
  bool remap_root = false, own_net = false, own_ipc = false, own_pid = false, own_uts = false;
  bool own_container = false;  ///< each task has its own container: --container-private
  bool writable = true;
  bool mounts_home = false;

  /// prefix of every host path; empty except in tests and for drivers in a separate root
  std::string host_root;
  /// GPU device nodes (is_gpu_node) that the step may open for reading and writing
  /// (is_mig_capability: for reading), from its cgroup, which can allow more than this task's;
  /// empty: not determined. may_open() considers both.
  std::optional<std::set<std::string>> granted_devices;

  /// Opens a file of the image, in `create` and `task`. Follows links in the container, but no
  /// /proc links out of it. Empty with errno on failure. Always O_CLOEXEC | O_NONBLOCK: an image
  /// may contain a FIFO.
  std::function<UniqueFd(const char* path, int flags)> open_in_image;

  /// Returns the last setting of this key, or `otherwise`.
  [[nodiscard]] std::string setting(std::string_view key, std::string_view otherwise = "") const;
  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const;
  [[nodiscard]] std::vector<std::string> settings_of(std::string_view key) const;
  /// Returns a variable of the job; nullptr if unset.
  [[nodiscard]] const std::string* of_job(std::string_view name) const;
  /// Returns a variable of the job as a number; empty if it is unset or not a number.
  [[nodiscard]] std::optional<std::uint32_t> job_number(std::string_view name) const;
  /// Returns a variable of the image; nullptr if unset.
  [[nodiscard]] const std::string* of_image(std::string_view name) const;
  /// Returns whether the step may open this device node of the host. Does not open it: that could
  /// wake up a GPU.
  [[nodiscard]] bool may_open(const std::string& node) const;
  /// Opens a regular file of the image for reading; empty if there is none.
  [[nodiscard]] UniqueFd open_regular(const char* path) const;
  /// Returns a regular file of the image, at most `most` bytes; empty if it is missing, too large
  /// or not a file.
  [[nodiscard]] std::optional<std::string> image_file(const char* path,
                                                      std::size_t most = 1 << 20) const;
};

/// A built-in hook: functions from a context to edits. Each may be null. An error fails the step
/// and names the hook.
struct Hook {
  /// NN-WORD: the stem, which determines the order, and by which a site replaces or disables it
  const char* name;
  const char* says;  ///< summary, one line
  /// Returns whether the hook takes part; considers the context only, no files.
  bool (*when)(const HookContext&) = nullptr;
  /// Runs once per step and node, on the host, as the user: requests everything that could be
  /// needed, before the image is known.
  Result<Edits> (*prepare)(const HookContext&) = nullptr;
  /// Runs next, in the container, before any mount: selects from the edits of `prepare`, its input,
  /// and adds others.
  Result<void> (*create)(const HookContext&, Edits&) = nullptr;
  /// Runs in each task, in the container, just before exec: environment, limits and warnings only.
  Result<Edits> (*task)(const HookContext&) = nullptr;
};

/// Returns the built-in hooks, in execution order.
const std::vector<const Hook*>& builtin_hooks();

}  // namespace spc
