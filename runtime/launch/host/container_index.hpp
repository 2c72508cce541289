#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "launch/host/named_container.hpp"

namespace spc {

// Which containers with a name a user has, on which nodes: the store's directories for them are
// root's alone. The step that makes one notes it in the user's home; if the note is lost, the next
// step that starts the container notes it again. Nothing is decided by it. What the site removes by
// itself stays noted until a step of the user's asks for the container.

struct NotedContainer {
  ContainerNotes notes;
  std::string node;
  std::string job;           ///< that it ends with, if it does
  std::int64_t made_at = 0;  ///< seconds since 1970
  std::string path;          ///< of the note
};

/// Where the notes lie by $XDG_DATA_HOME or $HOME; empty: nowhere.
std::string directory_of_container_notes(const std::map<std::string, std::string>& environment);

/// All of the user's that can be read, in no order.
std::vector<NotedContainer> noted_containers(const std::string& directory);

/// The note of the container with this name on the node of a step. Kept open, since it is written
/// from inside a container's root.
class ContainerNote {
 public:
  ContainerNote() = default;
  /// `environment`: the job's. Without a home it is none.
  static ContainerNote open(const ContainerName& name, bool of_job,
                            const std::map<std::string, std::string>& environment);
  /// Of a container that is not new: only if the note was lost.
  void write(const ContainerNotes& notes, bool is_new) const;
  void remove() const;

 private:
  UniqueFd directory_;
  std::string file_;
  std::string place_;  ///< the records of node and job
};

}  // namespace spc
