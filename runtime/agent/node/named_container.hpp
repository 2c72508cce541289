#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "agent/node/image_store.hpp"

namespace spc::agent {

/// A named container, as seen by root. Only root enters its directory, `containers/<uid>/<key>` in
/// the store:
///
///   lock     held by flock while the container is in use; its agents pass one open file
///   description to each other socket   where they answer joining agents is/      reused by a
///   start: `notes` (read and written only by the user's side), `record` and
///            `layers/` (hard links into the image store, so they cannot be evicted), `up/` and
///            `work/` for overlayfs
///
/// There is a stored container if, and only if, there are notes that are not empty: they get their
/// name last.
class NamedContainer {
 public:
  NamedContainer(uid_t uid, gid_t gid, std::string key)
      : uid_(uid), gid_(gid), key_(std::move(key)) {}
  /// Of what was taken and is no container yet nothing stays.
  ~NamedContainer();

  /// Takes the container, if nobody uses it. `afresh`: ignores what is stored. `most`: how many its
  /// user can have; 0: no limit.
  Result<bool> take(bool afresh, std::uint32_t most);
  /// A connection to its users; empty while nobody answers.
  [[nodiscard]] UniqueFd ask() const;

  [[nodiscard]] bool stored() const { return stored_; }
  [[nodiscard]] Result<ImageFiles> open_image() const;
  /// For overlayfs: a directory with `up` and `work`. Created, with links to the image, unless
  /// stored. `image`: of the store; empty: a file or directory of the user's, who brings it again.
  Result<UniqueFd> keep(const ImageFiles& image);
  /// It is ready: from now on others may use it, and it stays.
  Result<void> settle();

  UniqueFd lock;      ///< empty: not ours
  UniqueFd listener;  ///< ours, or passed on by its previous users, like the others
  UniqueFd notes;

 private:
  uid_t uid_;
  gid_t gid_;
  std::string key_;
  UniqueFd of_user_;  ///< until it is settled
  UniqueFd directory_;
  bool stored_ = false;
};

/// A socket with this name in a directory that only root enters; replaces a stale one.
Result<UniqueFd> listen_at(int directory, const std::string& name);
/// A connection to it; empty if no process of root answers there.
UniqueFd connect_to(int directory, const std::string& name);

/// `steps` in the run directory: the sockets of the steps on this node, and what jobs hold. Each
/// name begins with user and job.
Result<UniqueFd> open_steps();
std::string traces_of(uid_t uid, std::uint32_t job);

/// Removes those whose names begin like this. `how`: 0: sockets; AT_REMOVEDIR: directories, and so
/// what is held with them (hold_layers in builder/builder.hpp).
Result<void> remove_traces(const std::string& begin, int how);

/// When a job has ended: removes its containers, unless in use, what starts of this user have left
/// that were killed, and sockets that a killed slurmstepd left. A separate process, which is not
/// awaited, deletes their files.
Result<void> remove_containers_of(uid_t uid, std::uint32_t job);
/// When slurmd starts: removes what a crash left. Containers of jobs are kept unless they are older
/// than the last boot.
Result<void> sweep_containers();

}  // namespace spc::agent
