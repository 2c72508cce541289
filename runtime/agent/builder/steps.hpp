#pragma once

#include <span>
#include <vector>

#include "agent/builder/builder.hpp"
#include "agent/builder/mount.hpp"

/// The steps of build_container.

namespace spc::agent {

// --- namespaces.cpp ---

/// New namespaces of these kinds (`flags`: CLONE_NEW*; `names`: those below /proc/PID/ns), made by a child that enters the
/// user namespace `owner` first (-1: none), so that they belong to it. A new mount namespace is a copy of the caller's, in
/// which nothing that was there can be unmounted or lose a flag. `proc` is the node's /proc.
Result<std::vector<UniqueFd>> new_namespaces(int proc, int owner, int flags, const std::vector<const char*>& names);

/// The caller's net, ipc and uts as far as `bits` has them. They belong to the container's user namespace `user` if it has one:
/// its root can administer them.
Result<std::vector<UniqueFd>> enter_own_namespaces(std::uint32_t bits, int proc, int user);

// --- root.cpp: layers, a writable one above them, and the overlay ---

/// An image that is a directory is the only lower layer of its container. Overlayfs reads it as root, so root must be able to.
Result<DetachedMount> copy_directory(int directory);

/// A tmpfs in our namespace that holds the writable layer and the places where the layers are mounted. Overlayfs before
/// 6.13 takes only attached layers, so they are attached here; the pivot takes them out of sight. Hooks see it before, and
/// have `hooks` for their files.
Result<UniqueFd> make_workspace(const BuildOrder& order, DetachedMount kept);

/// Mounts the layers of `order.image` above `lower` and attaches all of them in the workspace, for mount_overlay; counts them.
Result<void> mount_layers(BuildOrder& order, const AgentTools& tools, std::vector<DetachedMount> lower, int workspace,
                          TaskMessage& ready);

/// One overlay over them, attached in the workspace; its root.
Result<UniqueFd> mount_overlay(std::size_t layers, int workspace, bool kept);

// --- set_up.cpp: what is attached in the root file system, and the leader's part in it ---

/// The trees of `order.sources`, to be copied in the namespace where they were opened, and, of a new container, those of HostTree
/// that it has, in its order.
Result<std::vector<DetachedMount>> mount_trees(BuildOrder& order);

/// What a `fuse` of this step serves.
Result<DetachedMount> mount_served(ServedLayer& layer, const BuildOrder& order, unsigned attributes = 0);

/// The leading task, inside as the user, opens the target of each of `trees` in turn; only its descriptors are used here.
/// `kind`: set_up, or hooks, which may mount more; `container`: what goes with it. `notes`: what it leaves for the other tasks.
Result<void> set_up_root(TaskMessageKind kind, std::span<const int> container, int lead, const BuildOrder& order,
                         std::vector<DetachedMount>& trees, UniqueFd& notes, TaskMessage& ready);

}  // namespace spc::agent
