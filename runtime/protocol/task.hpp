#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/digest.hpp"
#include "protocol/policy.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// Messages between the tasks of a step and its agent: fixed size, over SEQPACKET sockets, nothing
/// to parse.
///
///   task    ── join ──►                     agent       on the step's common socket
///   agent   ── one byte (socket) ──►        task        on the common socket; what follows uses
///                                                       the new one
///
/// The first task leads, the others only wait for ready or failed:
///
///   agent   ── lead (policy, notes, socket) ──►  lead
///   lead    ── one byte (mount namespace) ──►    builder  on the socket of `lead`, which ends
///                                                         there: no file of the user is read yet
///   lead    ── name ──►                     agent       only for a container with a name
///   agent   ── named (state, notes) ──►     lead        once known, and not while another step
///                                                       prepares it
///   lead    ── start ──►                    agent       which image
///   agent   ── import_asks (socket) ──►     lead        if `import` is needed, which reads its
///                                                       request and asks the user's side there
///   agent   ── progress, warning … ──►      every task
///   agent   ── pulled ──►                   lead        instead of all that follows, if only a
///                                                       pull was requested
///   agent   ── serves (socket) … ──►        lead        a server for each image file; the file is
///                                                       sent there (FuseLoan), never to root
///   agent   ── sources ──►                  lead        a builder begins; serves and sources are
///                                                       repeated if it could not mount the image
///   lead    ── source … ──►                 builder     host directories to mount
///   builder ── hooks (/, record, root, namespace) ──►  lead
///                                                       only if requested: the root exists and the
///                                                       host is still visible; then target …
///                                                       set_up_done as below, and targets with
///                                                       their sources. The leader holds the
///                                                       namespace until the hooks have ended
///   builder ── set_up (/, record) ──►       lead        the root exists, nothing is attached to it
///                                                       yet; "/" is the root directory of the
///                                                       container's mount namespace
///   lead    ── target (descriptor) ──►      builder     one at a time: a target may be inside an
///                                                       earlier one
///   builder ── attached (errno) ──►         lead
///   lead    ── set_up_done ──►              builder
///   builder ── to_save (the root) ──►       lead        only if requested
///   lead    ── to_save or failed ──►        builder     the saver has the root and has listed it
///   agent   ── ready (namespace, record, notes) or failed ──►  every task
///
/// The agent receives no descriptor from a task. The leader passes paths only (O_PATH), and only to
/// the builder, which also receives the task's namespace. A process that closes an opened file may
/// have to wait for the server of its file system, and only the step waits for a builder.
enum class TaskMessageKind : std::uint32_t {
  join = 1,
  lead,
  source,
  start,
  progress,
  warning,
  set_up,
  target,
  attached,
  set_up_done,
  ready,
  failed,
  name,
  named,
  to_save,
  hooks,
  pulled,
  import_asks,
  serves,
  sources,
};

/// User and step, in Slurm's numbers. Job 0: not a Slurm step.
struct StepId {
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t job = 0;
  std::uint32_t step = 0;
};

/// Trees that the builder copies from the host, or creates, itself. The leader only names their
/// targets. The last two are for a container with own_ipc only.
enum class HostTree : std::uint32_t { proc, sys, dev, tmp, shm, mqueue, count };

/// Namespaces of a container besides its mount namespace, in the order in which `ready` passes
/// them. In `user`, the user has ID 0 and no other ID exists. Processes enter only after all mounts
/// are in place, in a mount namespace owned by it. `cgroup` is not passed: its root is the cgroup
/// of its creator, so each task creates its own.
enum NamespaceBits : std::uint32_t {
  own_user = 1,
  own_net = 2,
  own_ipc = 4,
  own_uts = 8,
  own_pid = 16,
  own_cgroup = 32
};

/// The kernel's names: the flag of clone(2), and the name below /proc/PID/ns and in
/// --container-unshare.
struct NamespaceKind {
  NamespaceBits bit;
  int flag;
  const char* name;
};
inline constexpr std::array<NamespaceKind, 6> kNamespaceKinds = {
    {{own_user, CLONE_NEWUSER, "user"},
     {own_net, CLONE_NEWNET, "net"},
     {own_ipc, CLONE_NEWIPC, "ipc"},
     {own_uts, CLONE_NEWUTS, "uts"},
     {own_pid, CLONE_NEWPID, "pid"},
     {own_cgroup, CLONE_NEWCGROUP, "cgroup"}}};

/// Phases of a set-up as shown by --container-verbose and the benchmarks.
enum class Phase : std::uint32_t { import, sources, layers, overlay, pivot, root_setup, count };
/// microseconds
using PhaseTimes = std::array<std::uint32_t, static_cast<std::size_t>(Phase::count)>;

struct TaskMessage {
  TaskMessageKind kind{};

  // source: how the tree of the passed descriptor (O_PATH) is mounted, always with all mounts in
  // it. Without a descriptor: the tree of the next server, or with source_tmpfs a new tmpfs of
  // `size` bytes (0: the size limit of the writable layer) owned by the user
  enum SourceFlags : std::uint32_t {
    source_read_only = 1,
    source_no_devices = 2,  ///< device nodes in it cannot be opened, not even by their owner
    source_no_exec = 4,
    source_tmpfs = 8,
    source_squashfs = 16,  ///< a regular file with a squashfs, served by `fuse` and mounted itself
    source_private = 32,   ///< later mounts on the host are not propagated
    source_unbindable = 64,  ///< the mount cannot be bound elsewhere either
    // source_tmpfs: use of huge pages, one of these numbers; none: the kernel's default
    source_huge_never = 128 * 1,
    source_huge_always = 128 * 2,
    source_huge_within_size = 128 * 3,
    source_huge_advise = 128 * 4,
    source_terminals = 1024,    ///< with source_tmpfs: a new devpts instead of a tmpfs
    source_no_symlinks = 2048,  ///< links in the mount are not followed; from Linux 5.14 on
  };
  std::uint32_t source_flags = 0;
  /// Returns the MOUNT_ATTR_* of these flags; nosuid applies to every mount.
  static unsigned attributes_of(std::uint32_t flags) {
    return MOUNT_ATTR_NOSUID | ((flags & source_read_only) != 0 ? MOUNT_ATTR_RDONLY : 0U) |
           ((flags & source_no_devices) != 0 ? MOUNT_ATTR_NODEV : 0U) |
           ((flags & source_no_exec) != 0 ? MOUNT_ATTR_NOEXEC : 0U) |
           ((flags & source_no_symlinks) != 0 ? MOUNT_ATTR_NOSYMFOLLOW : 0U);
  }
  std::uint64_t size = 0;
  std::uint64_t inodes = 0;  ///< source_tmpfs: maximum number of files; 0: the kernel's default

  // start. A directory as image is a source after the others, a file is the first served one. The
  // record of both is empty.
  enum StartFlags : std::uint32_t {
    start_read_only = 1,
    /// try `manifest` first; `import` runs only if it is not in the store or not public
    start_known = 2,
    start_squashfs = 4,   ///< the image is a regular file, served by `fuse` as the user
    start_directory = 8,  ///< the image is a directory
    start_private = 16,   ///< this container is for the leader only; each task gets its own
    start_stored = 32,    ///< the image is that of the named container
    /// enter the running container of this name; only sources and targets are added
    start_join = 64,
    start_save = 128,   ///< the leader receives the container's root, open, without mounts
    start_hooks = 256,  ///< the leader needs to modify the root while the host is visible
    start_pull = 512,   ///< no container: only bring the image into the store
  };
  std::uint32_t start_flags = 0;  ///< named and ready: start_read_only of the existing container
  /// lead, of a private container: the image of the step's earlier containers. set_up and ready:
  /// the container's image, if it is in the store
  Digest manifest;
  /// start, of an image for the store: the key of its name (reference/reference.hpp), the only one
  /// that `import` may write.
  Digest image_name;

  /// start: NamespaceBits of the new container; ready and named: of the existing one
  std::uint32_t namespaces = 0;
  /// start: size limit in bytes, of the root file system and of /tmp each, 0: the site's limit;
  /// ready and named: that of the existing container
  std::uint64_t upper_size = 0;

  // name: these flags alone determine owner and location of the container's files, without any
  // text. named: the flag that applies
  enum NameFlags : std::uint32_t {
    name_of_job = 1,  ///< the name is per job, and its container is removed with the job
    /// `container` is not a name: the first 8 bytes are job and step ID of a running step without
    /// one
    name_of_step = 2,
    name_replace = 4,  ///< discard the container stored under this name, unless it is running
  };
  std::uint32_t name_flags = 0;
  Digest container;  ///< derived from the name: request/container_name.hpp
  enum NamedState : std::uint32_t { named_new = 0, named_stored = 1, named_running = 2 };
  /// named, with one descriptor: the container's notes, empty if it is new (see launch/). From the
  /// agent of a running container to another agent: three descriptors, its lock, its socket and its
  /// notes.
  std::uint32_t named_state = 0;
  /// start: number of files to serve, at most kMaxSources. From the agent of a running container to
  /// another agent: number of sockets, the last descriptors, of servers to start
  /// (protocol/fuse.hpp).
  std::uint32_t servers = 0;

  // start: count of sources without the image, at most kMaxSources. serves: the file's number.
  // target: a source in the order sent, or count of sources + a HostTree. While hooks run, also a
  // source that is opened only now, as a second descriptor, or a tmpfs without one: source_flags
  // and size as for source. attached: errno, 0 = done
  std::uint32_t index = 0;
  std::int32_t error = 0;

  // ready, with the mount namespace, the image's record, the notes that the leader was passed with
  // `lead`, and one descriptor for each of `namespaces`
  /// set_up_done and ready: hooks of the site need data of the host, which each task must query
  /// before it enters. Always true in a container that another step has started.
  bool asks_host = false;
  PhaseTimes times{};
  std::uint32_t layers = 0;
  std::uint32_t layers_served = 0;  ///< number of layers served by FUSE
  /// number of layers whose super block another step had already mounted
  std::uint32_t layers_shared = 0;

  // lead; ready and failed: its task_flags, for tasks that have not read any text yet
  PolicyRecord policy;
  // progress, warning; set_up_done and ready: from the leader for the tasks, unchanged
  Text<600> text;
  WireError failure;  // failed
};

/// The step's end of the common socket in the agent; descriptors 0-2 are on /dev/null.
inline constexpr int kAgentSocket = 3;
/// A socket that slurmstepd never reads. The agent sends each tmpfs mount to it, so that the kernel
/// frees the pages of a tmpfs when slurmstepd exits. Otherwise the exit of a task would free them,
/// for which Slurm waits (UnkillableStepTimeout) before it drains the node.
inline constexpr int kAgentKeeper = 4;

/// Limit of mounts in one container: the kernel's own default limit is far above (fs.mount-max).
inline constexpr std::uint32_t kMaxSources = 512;

}  // namespace spc
