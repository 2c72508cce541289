#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "agent/image_store.hpp"

namespace spc::agent {

/// A named container, as seen by root. Only root enters its directory, `containers/<uid>/<key>` in
/// the store:
///
///   lock     held by flock while the container is in use; its agents pass one open file
///            description to each other
///   socket   where they answer joining agents
///   is/      reused by a start: `notes` (read and written only by the user's side), `record` and
///            `layers/` (hard links into the image store, so they cannot be evicted), `up/` and
///            `work/` for overlayfs
///
/// There is a stored container if, and only if, `notes` is not empty: it gets its name last.
class NamedContainer {
 public:
  NamedContainer(uid_t uid, gid_t gid, std::string key)
      : uid_(uid), gid_(gid), key_(std::move(key)) {}
  /// Removes the partially created container, or one that has been removed while steps use it.
  ~NamedContainer();

  /// Acquires the container if it is unused. `afresh`: ignores the stored container. `most`: the
  /// maximum number of containers of its user; 0: no limit.
  Result<bool> take(bool afresh, std::uint32_t most);
  /// Returns a connection to the agent that uses the container; empty if none answers.
  [[nodiscard]] UniqueFd ask() const;

  [[nodiscard]] bool stored() const { return stored_; }
  [[nodiscard]] Result<ImageFiles> open_image() const;
  /// Returns a directory with `up` and `work` for overlayfs. Creates it, with links to the image,
  /// unless stored. `image`: an image of the store; empty for a file or directory of the user's,
  /// which the user provides again.
  Result<UniqueFd> keep(const ImageFiles& image);
  /// Marks the container as ready: from now on other steps may use it, and it is kept.
  Result<void> settle();

  UniqueFd lock;      ///< empty: not held by this agent
  UniqueFd listener;  ///< created here or, like the other descriptors, passed on by its previous
                      ///< users
  UniqueFd notes;

 private:
  uid_t uid_;
  gid_t gid_;
  std::string key_;
  UniqueFd of_user_;  ///< until it is settled
  UniqueFd directory_;
  bool stored_ = false;
};

/// Creates a listening socket with this name in a directory that only root enters; replaces a stale
/// one.
Result<UniqueFd> listen_at(int directory, const std::string& name);
/// Connects to it; returns an empty descriptor if no process of root answers there.
UniqueFd connect_to(int directory, const std::string& name);

/// Opens `steps` in the run directory: the sockets of the node's steps, and the layers that jobs
/// hold. Each name begins with user and job.
Result<UniqueFd> open_steps();
std::string traces_of(uid_t uid, std::uint32_t job);

/// Removes entries of that directory whose names have this prefix. `how`: 0 for sockets;
/// AT_REMOVEDIR for directories, and so for layers held with them (hold_layers in builder.hpp).
Result<void> remove_traces(const std::string& begin, int how);

/// Cleans up after a job: removes its unused containers, the remains of killed starts of this user,
/// and sockets that a killed slurmstepd left. A separate process, which is not awaited, deletes
/// their files.
Result<void> remove_containers_of(uid_t uid, std::uint32_t job);
/// Removes the remains of a crash, when slurmd starts. Containers of jobs are kept unless they are
/// older than the last boot.
Result<void> sweep_containers();

}  // namespace spc::agent
