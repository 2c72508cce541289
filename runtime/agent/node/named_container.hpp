#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "agent/node/image_store.hpp"

namespace spc::agent {

/// A container with a name, as root sees it. Nobody else enters its directory, `containers/<uid>/<key>` in the store:
///
///   lock     held by flock as long as the container is in use; its agents pass one open file description on to each other
///   socket   where they answer those who come to join
///   is/      what a start uses again: `notes` (of the user's side, which alone reads and writes them), `record` and
///            `layers/` (hard links into the image store, so no eviction takes them away), `up/` and `work/` for overlayfs
///
/// There is something to use again if, and only if, the notes are not empty: they are written last.
class NamedContainer {
 public:
  NamedContainer(uid_t uid, gid_t gid, std::string key) : uid_(uid), gid_(gid), key_(std::move(key)) {}

  /// Makes the container ours, if nobody uses it. `afresh`: as if nothing were stored.
  Result<bool> take(bool afresh);
  /// A connection to those who use it; empty while nobody answers.
  [[nodiscard]] UniqueFd ask() const;

  [[nodiscard]] bool stored() const { return stored_; }
  [[nodiscard]] Result<ImageFiles> open_image() const;
  /// What is to be mounted for overlayfs: a directory with `up` and `work`. Made, with links to the image, unless stored.
  Result<UniqueFd> keep(const ImageFiles& image);

  UniqueFd lock;      ///< empty: not ours
  UniqueFd listener;  ///< ours or, like the others, handed over by who was there before
  UniqueFd notes;

 private:
  uid_t uid_;
  gid_t gid_;
  std::string key_;
  UniqueFd directory_;
  bool stored_ = false;
};

/// A socket with this name in a directory that only root enters, where others take the place of what is left there.
Result<UniqueFd> listen_at(int directory, const std::string& name);
/// A connection to it; empty when no process of root answers there.
UniqueFd connect_to(int directory, const std::string& name);
/// Who has connected; empty when another agent was faster, or it is not root.
UniqueFd accept_root(int listener);

/// `steps` in the run directory: the sockets of the steps on this node, by user, job and step.
Result<UniqueFd> open_steps();
std::string step_name(uid_t uid, std::uint32_t job, std::uint32_t step);

/// When a job has ended: its containers go, as far as nobody uses them. Their files are deleted by a process that this
/// one does not wait for.
Result<void> remove_containers_of(uid_t uid, std::uint32_t job);
/// When slurmd starts: what a crash has left. Containers of jobs are left alone unless they are older than the machine's start.
Result<void> sweep_containers();

}  // namespace spc::agent
