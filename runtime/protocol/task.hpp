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
///   task   ── join (own socket, own mount namespace) ──►  agent        on the step's common socket
///   the first task leads, the others only wait for ready or failed:
///   agent  ── lead (policy, notes) ──►     lead
///   lead   ── name ──►                     agent        only for a container with a name: is there one?
///   agent  ── named (state, notes) ──►     lead         as soon as it is known; not while somebody else prepares it
///   lead   ── start ──►                    agent        which image
///   agent  ── import_asks (socket) ──►     lead         if `import` is needed: it reads its request there, and asks the user's side
///   agent  ── progress, warning … ──►      every task
///   agent  ── pulled ──►                   lead         instead of all that follows, if only that was asked for
///   agent  ── serves (socket) … ──►        lead         a server for each image file: it is sent there (FuseLoan), so that root never has it
///   agent  ── sources ──►                  lead         a builder begins; serves and sources come again if one could not mount the image
///   lead   ── source … ──►                 builder      which host directories
///   builder ── hooks (/, record, root,     lead         only if it asked for it: the root exists, and the host is still in sight;
///                namespace) ──►                         then target … set_up_done as below, and targets with their sources. The
///                                                       namespace is to be held, so that nothing
///                                                       vanishes under the hooks
///   builder ── set_up (/, record) ──►      lead         the root exists; nothing else is attached to it yet. "/" is the root
///                                                       directory of the container's mount
///                                                       namespace, opened
///   lead   ── target (descriptor) ──►      builder      one at a time, since a target may lie in an earlier one
///   builder ── attached (errno) ──►        lead
///   lead   ── set_up_done ──►              builder
///   builder ── to_save (the root) ──►      lead         only if it asked for it
///   lead   ── to_save or failed ──►        builder      the saver has it, and has seen what it has to
///   agent  ── ready (namespace, record, notes) or failed ──►  every task
///
/// The leader passes paths only (O_PATH), and those to the builder: a process that closes an opened
/// file may have to wait for the server of its file system, and nothing but the step waits for a
/// builder.
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

/// Trees that the builder takes from the host, or creates, itself; the leader only names their
/// targets. The last two are for a container with own_ipc only.
enum class HostTree : std::uint32_t { proc, sys, dev, tmp, shm, mqueue, count };

/// Namespaces of a container besides its mount namespace, in the order in which `ready` passes
/// them. In `user`, the user has ID 0 and no other ID exists; nobody enters before all mounts are
/// in place, in a mount namespace owned by it. `cgroup` is not passed: its root is the cgroup of
/// who makes it, so each task makes its own.
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
using PhaseTimes =
    std::array<std::uint32_t, static_cast<std::size_t>(Phase::count)>;  ///< microseconds

struct TaskMessage {
  TaskMessageKind kind{};

  // source: how the tree of the passed descriptor (O_PATH) is mounted, always with what is mounted
  // in it. Without one: what the next of the servers serves, or with source_tmpfs a new tmpfs of
  // `size` bytes (0: the size limit of the writable layer) owned by the user
  enum SourceFlags : std::uint32_t {
    source_read_only = 1,
    source_no_devices = 2,  ///< a device node in it cannot be opened, not even by its owner
    source_no_exec = 4,
    source_tmpfs = 8,
    source_squashfs = 16,  ///< a regular file with a squashfs, served by `fuse` and mounted itself
    source_private = 32,   ///< later mounts on the host are not propagated
    source_unbindable = 64,  ///< nor can it be bound elsewhere
    // source_tmpfs: its use of huge pages, one of these numbers; none: as the kernel does
    source_huge_never = 128 * 1,
    source_huge_always = 128 * 2,
    source_huge_within_size = 128 * 3,
    source_huge_advise = 128 * 4,
    source_terminals = 1024,  ///< with source_tmpfs: not a tmpfs, but a new devpts
  };
  std::uint32_t source_flags = 0;
  /// The MOUNT_ATTR_* that they ask for; nosuid is every mount's.
  static unsigned attributes_of(std::uint32_t flags) {
    return MOUNT_ATTR_NOSUID | ((flags & source_read_only) != 0 ? MOUNT_ATTR_RDONLY : 0U) |
           ((flags & source_no_devices) != 0 ? MOUNT_ATTR_NODEV : 0U) |
           ((flags & source_no_exec) != 0 ? MOUNT_ATTR_NOEXEC : 0U);
  }
  std::uint64_t size = 0;
  std::uint64_t inodes = 0;  ///< source_tmpfs: how many files; 0: as the kernel does

  // start. An image that is a directory is a source behind the others, and a file the first that is
  // served; the record of both is empty.
  enum StartFlags : std::uint32_t {
    start_read_only = 1,
    start_known =
        2,  ///< try `manifest` first; `import` runs only if it is not in the store or not public
    start_squashfs = 4,   ///< the image is a regular file, served by `fuse` as the user
    start_directory = 8,  ///< the image is a directory
    start_private = 16,   ///< this container is for the leader only; each task gets its own
    start_stored = 32,    ///< the image is that of the named container
    start_join =
        64,  ///< enter the running container of this name; only sources and targets are added
    start_save = 128,   ///< the leader gets the container's root, open, without mounts
    start_hooks = 256,  ///< it needs to modify the root while the host is visible
    start_pull = 512,   ///< no container: the image is to be in the store
  };
  std::uint32_t start_flags = 0;  ///< named and ready: start_read_only of the existing container
  /// lead, of a private container: the image of the step's earlier ones; set_up and ready: of the
  /// image, if it is in the store
  Digest manifest;
  /// start, of an image for the store: the key of its name (image/reference/named_image.hpp), the
  /// only one that `import` may write.
  Digest image_name;

  std::uint32_t namespaces =
      0;  ///< start: NamespaceBits of the new container; ready and named: of the existing one
  /// start: size limit in bytes, of the root file system and of /tmp each, 0: the site's limit;
  /// ready and named: of the existing
  std::uint64_t upper_size = 0;

  // name: only these determine who owns its files and where they are (no text); named: which of
  // these it is
  enum NameFlags : std::uint32_t {
    name_of_job = 1,   ///< the name is per job, and its container is removed with the job
    name_of_step = 2,  ///< `container` is not a name: the first 8 bytes are job and step ID of a
                       ///< running step without one
    name_replace = 4,  ///< discard what is stored under this name, unless it is running
  };
  std::uint32_t name_flags = 0;
  Digest container;  ///< derived from the name: launch/request/container_name.hpp
  enum NamedState : std::uint32_t { named_new = 0, named_stored = 1, named_running = 2 };
  /// For a named container with one descriptor, its notes, which are empty if it is new: see
  /// launch/. From the agent of a running one to another agent: three, its lock, its socket and its
  /// notes.
  std::uint32_t named_state = 0;
  /// start: how many files are to be served, at most kMaxSources. From the agent of a running
  /// container to another agent: how many sockets, the last descriptors, are those of servers that
  /// it is to start (protocol/fuse.hpp).
  std::uint32_t servers = 0;

  // start: count of sources without the image, at most kMaxSources. serves: the file's number.
  // target: a source in the order sent, or count of sources + a HostTree; while hooks run also
  // something that is opened only now, as a second descriptor or, a tmpfs, without one:
  // source_flags and size as for source. attached: errno, 0 = done
  std::uint32_t index = 0;
  std::int32_t error = 0;

  // ready, with the mount namespace, the image's record, the notes that the leader was passed with
  // `lead`, and one descriptor for each of `namespaces`
  /// set_up_done and ready: each task has to ask the host something before it enters, for hooks of
  /// the site; so it always is in a container that another step has started.
  bool asks_host = false;
  PhaseTimes times{};
  std::uint32_t layers = 0;
  std::uint32_t layers_served = 0;  ///< by FUSE
  std::uint32_t layers_shared = 0;  ///< whose super block was already mounted by another step

  PolicyRecord policy;  // lead; ready and failed: its task_flags, for tasks that read no text yet
  Text<600>
      text;  // progress, warning; set_up_done and ready: from the leader for the tasks, unchanged
  WireError failure;  // failed
};

/// The step's end of the common socket in the agent; its other descriptors are 0-2 on /dev/null.
inline constexpr int kAgentSocket = 3;
/// A socket that slurmstepd never reads. The agent sends each tmpfs mount to it, so the kernel
/// frees the pages of a tmpfs when slurmstepd exits, and not in the exit of a task, for which Slurm
/// waits (UnkillableStepTimeout) before it drains the node.
inline constexpr int kAgentKeeper = 4;

/// Limit of mounts in one container: the kernel's own default limit is far above (fs.mount-max).
inline constexpr std::uint32_t kMaxSources = 512;

}  // namespace spc
