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

/// A file or directory of the host that shall appear inside, or a new file system.
struct MountEdit {
  std::string source;  ///< absolute, on the host; opened with the user's rights alone. Empty: a new tmpfs
  std::string target;  ///< absolute, inside; in `create` it may be changed, or emptied: it is not mounted then
  bool read_only = true;
  bool no_exec = false;
  bool recursive = true;
  bool optional = false;   ///< that it is not there is not worth a word; else the step is refused
  std::uint64_t size = 0;  ///< of a tmpfs, in bytes; 0: as large as the writable layer may be

  bool operator==(const MountEdit&) const = default;
};

/// A device node of the host. The container has the host's /dev, so one that keeps its name needs no mount; what may be done
/// with it is for the step's device cgroup to say.
struct DeviceEdit {
  std::string path;    ///< inside
  std::string source;  ///< on the host; empty: the same
  bool optional = false;

  bool operator==(const DeviceEdit&) const = default;
};

struct SymlinkEdit {
  std::string path;    ///< inside; what is there, unless it is a directory, makes way
  std::string target;  ///< as it is written in the link

  bool operator==(const SymlinkEdit&) const = default;
};

/// A small file, written by the user inside; what is there makes way.
struct FileEdit {
  std::string path;
  std::string content;
  mode_t mode = 0644;

  bool operator==(const FileEdit&) const = default;
};

/// A shared library that the loader shall find by its soname: an entry of /etc/ld.so.cache, and the link beside the file.
struct LibraryEdit {
  std::string soname;         ///< libcuda.so.1
  std::string path;           ///< inside: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
  bool before = true;         ///< wins over a library of the image with the same soname; false: only where it has none
  std::uint16_t machine = 0;  ///< its e_machine (loader/elf.hpp); 0: that of the node

  bool operator==(const LibraryEdit&) const = default;
};

/// A directory of the image whose libraries the loader shall find: before all others or after.
struct LibraryDirectoryEdit {
  std::string path;
  bool before = true;

  bool operator==(const LibraryDirectoryEdit&) const = default;
};

/// A soft limit of the tasks, raised or lowered as far as the hard one lets; a name of setrlimit(2) without RLIMIT_, in lower
/// case: memlock, nofile, stack, core.
struct LimitEdit {
  std::string name;
  std::uint64_t soft = 0;  ///< UINT64_MAX: unlimited

  bool operator==(const LimitEdit&) const = default;
};

/// A program of the node's, root's like everything above it, that a hook wants run: as the user, on the host, before the container
/// is entered, with the state on standard input that OCI runtimes hand to their hooks.
struct ProgramEdit {
  std::string path;
  std::vector<std::string> args;  ///< argv; empty: the path
  std::vector<std::string> env;   ///< NAME=VALUE, besides what all hooks have
  std::uint64_t timeout = 0;      ///< seconds; 0: hook_timeout of config.toml

  bool operator==(const ProgramEdit&) const = default;
};

/// What a built-in hook finds on the host in `prepare` and keeps for its own `create`, which cannot see the host: a struct of
/// its own that derives from this.
struct HostFindings {
  virtual ~HostFindings() = default;
};

/// What a hook wants to be different: a superset of the containerEdits of CDI. It does nothing by itself; the engine checks,
/// merges and applies all edits once, with no rights but the user's.
struct Edits {
  /// In the order unset, set, prepend, default. What --container-env gives or keeps stays in any case.
  struct Environment {
    std::set<std::string> unset;
    std::map<std::string, std::string> set;
    std::map<std::string, std::string> prepend;   ///< before what a colon-separated list has
    std::map<std::string, std::string> defaults;  ///< of variables that nobody has set
    bool operator==(const Environment&) const = default;
  } environment;

  // From `prepare` only; create() may leave out or move, and not add.
  std::vector<MountEdit> mounts;
  std::vector<DeviceEdit> devices;
  std::vector<std::string> denied_devices;  ///< nodes of the host's /dev that cannot be opened inside

  std::vector<SymlinkEdit> symlinks;
  std::vector<FileEdit> files;
  std::vector<std::string> directories;  ///< inside, made if absent
  std::vector<LibraryEdit> libraries;
  std::vector<LibraryDirectoryEdit> library_directories;
  std::vector<LimitEdit> limits;
  std::vector<ProgramEdit> programs;  ///< from `prepare` only

  std::vector<std::string> notes;                 ///< for --container-explain: what was found, and why something is not done
  std::vector<std::string> warnings;              ///< told to the user, once a step and node
  std::map<std::string, std::string> remembered;  ///< what prepare() found out for create(); nobody else looks at it
  std::string refusal;                            ///< the step cannot run: why, with a hint. Empty: it can

  std::shared_ptr<const HostFindings> found;  ///< from `prepare` of a built-in; does not leave the process

  /// What the same hook has found in `prepare`; nullptr if it has kept nothing.
  template <typename Findings>
  [[nodiscard]] const Findings* found_as() const {
    return dynamic_cast<const Findings*>(found.get());
  }

  bool operator==(const Edits&) const = default;
};

/// Whether granted_devices would say it: /dev/nvidia*, /dev/kfd, /dev/dri/*.
bool is_gpu_node(std::string_view node);

/// What a hook may know. Everything in it is data: nothing of the image or the job is executed or believed.
struct HookContext {
  using Variables = std::map<std::string, std::string>;

  Variables job;                         ///< the environment of the job, in task() of that task
  Variables image;                       ///< the variables that the image sets; known from `create` on
  Variables environment;                 ///< task() only: what the task would be given without hooks
  std::string image_name, image_digest;  ///< from `create` on; the digest of an image that is a file: empty
  std::multimap<std::string, std::string, std::less<>> settings;  ///< of config.toml: KEY, or several of a list

  uid_t uid = 0;
  gid_t gid = 0;
  std::string user, home;  ///< as the host knows them

  std::optional<bool> gpu;           ///< --container-gpu, --no-container-gpu
  std::vector<std::string> devices;  ///< --container-device: names of CDI, VENDOR/CLASS=NAME
  std::vector<std::string> command;  ///< of the tasks, as far as it is known
  bool has_bind_mounts = false;      ///< the user asked for files or directories of the host
  std::string mpi;                   ///< --container-mpi: image, host, or empty
  bool remap_root = false, own_net = false, own_ipc = false, own_pid = false, own_uts = false;
  bool own_container = false;  ///< each task has one of its own: --container-private
  bool writable = true;
  bool mounts_home = false;

  std::string host_root;  ///< before every path of the host; empty but in tests and for drivers in a place of their own
  /// Nodes of GPUs (is_gpu_node) that the step may open for reading and writing, found in its cgroup, which can be wider than
  /// this task's; empty: they were not looked for. may_open() knows both.
  std::optional<std::set<std::string>> granted_devices;

  /// Opens a file of the image, in `create` and `task`; links are followed inside, those of /proc that lead out are not.
  /// Empty with errno if it cannot. Always with O_CLOEXEC | O_NONBLOCK: an image may bring a FIFO.
  std::function<UniqueFd(const char* path, int flags)> open_in_image;

  /// The last setting of this key, or `otherwise`.
  [[nodiscard]] std::string setting(std::string_view key, std::string_view otherwise = "") const;
  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const;
  [[nodiscard]] std::vector<std::string> settings_of(std::string_view key) const;
  /// A variable of the job, of the image; nothing if it is not set.
  [[nodiscard]] const std::string* of_job(std::string_view name) const;
  [[nodiscard]] const std::string* of_image(std::string_view name) const;
  /// Whether the step may open this device node of the host. It is not opened: that could wake a GPU.
  [[nodiscard]] bool may_open(const std::string& node) const;
  /// A regular file of the image, at most `most` bytes; nothing if it is missing, too large or no file.
  [[nodiscard]] std::optional<std::string> image_file(const char* path, std::size_t most = 1 << 20) const;
};

/// A built-in hook: functions from a context to edits. Each may be null. Errors refuse the step under the hook's name.
struct Hook {
  const char* name;  ///< NN-WORD: the stem, which decides the order, and by which a site replaces it or turns it off
  const char* says;  ///< what it is for, in one line
  /// Whether it has anything to do; looks at the context alone, not at files.
  bool (*when)(const HookContext&) = nullptr;
  /// Once a step and node, on the host, as the user: what could be needed, before the image is known.
  Result<Edits> (*prepare)(const HookContext&) = nullptr;
  /// Then, inside, before anything is mounted: what of that it will be, and what comes with it. Gets what prepare gave.
  Result<void> (*create)(const HookContext&, Edits&) = nullptr;
  /// Each task, inside, just before it is executed: environment, limits and warnings only.
  Result<Edits> (*task)(const HookContext&) = nullptr;
};

}  // namespace spc
