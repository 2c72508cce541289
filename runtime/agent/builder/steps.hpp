#pragma once

#include <span>
#include <vector>

#include "agent/builder/builder.hpp"
#include "agent/builder/mount.hpp"

/// The steps of build_container.

namespace spc::agent {

// --- namespaces.cpp ---

/// New namespaces of these kinds (`flags`: CLONE_NEW*; `names`: those below /proc/PID/ns), created
/// by a child that enters the user namespace `owner` first (-1: none), so that it owns them. A new
/// mount namespace is a copy of the caller's, in which existing mounts can neither be unmounted nor
/// lose a flag. `proc` is the node's /proc.
Result<std::vector<UniqueFd>> new_namespaces(int proc, int owner, int flags,
                                             const std::vector<const char*>& names);

/// The caller's net, ipc and uts, as selected by `bits`. If the container has a user namespace,
/// `user` owns them: its root can administer them.
Result<std::vector<UniqueFd>> enter_own_namespaces(std::uint32_t bits, int proc, int user);

// --- root.cpp: layers, a writable one above them, and the overlay ---

/// An image directory, which the leader names: the only lower layer of its container.
Result<DetachedMount> copy_directory(int lead);

/// A tmpfs in our namespace with the writable layer and the mount points of the layers. Overlayfs
/// before 6.13 takes only attached layers, so they are attached here; the pivot hides them. Hooks
/// run before the pivot, and have `hooks` for their files.
Result<UniqueFd> make_workspace(const BuildOrder& order, DetachedMount kept);

/// Attaches these layers, and what is served above them, in the workspace, for mount_overlay;
/// counts all.
Result<void> attach_layers(BuildOrder& order, std::vector<DetachedMount> lower, int workspace,
                           TaskMessage& ready);

/// One overlay over them, attached in the workspace; its root. `lead`: the socket to a task, for
/// the user's groups.
Result<UniqueFd> mount_overlay(const BuildOrder& order, int lead, std::size_t layers,
                               int workspace);

// --- set_up.cpp: what is attached in the root file system, and the leader's part in it ---

/// The leader's next message, with at most so many descriptors. One that is opened is refused; the
/// end of this process closes it.
Result<std::vector<UniqueFd>> receive_paths(int lead, TaskMessage& message, std::size_t most);

/// The sources that are due from the leader, copied in the namespace where they were opened, and,
/// of a new container, its HostTrees in order.
Result<std::vector<DetachedMount>> mount_trees(BuildOrder& order, int lead);

/// The file system served by a `fuse` of this step.
Result<DetachedMount> mount_served(ServedLayer& layer, const BuildOrder& order,
                                   unsigned attributes = 0);

/// The leader, in the container as the user, opens the target of each of `trees` in turn; only its
/// descriptors are used here. `kind`: set_up, or hooks, which may mount more and are passed `more`.
Result<void> set_up_root(TaskMessageKind kind, std::span<const int> more, int lead,
                         BuildOrder& order, std::vector<DetachedMount>& trees, TaskMessage& ready);

}  // namespace spc::agent
