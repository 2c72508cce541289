#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"
#include "reference/location.hpp"
#include "request/container_name.hpp"
#include "request/options.hpp"

namespace spc {

// --- named container ---

/// The image from which a named container was created, written into its notes by the leader of the
/// creating step.
struct ContainerNotes {
  std::string name;
  std::string image;         ///< from known_as()
  std::string digest;        ///< manifest digest of an image in the store
  std::string file;          ///< identity of a file or directory
  std::string maker;         ///< job of the creating step; empty if an older version created it
  std::int64_t made_at = 0;  ///< seconds since 1970

  static ContainerNotes parse(std::string_view records);
  [[nodiscard]] std::string serialize() const;
};

/// The image requested by this step for a named container. Empty members: not requested, or
/// unknown.
struct WantedImage {
  std::string image;
  std::string digest;
};

/// The action of a step on the container of its name.
enum class NamePlan {
  make,   ///< create it from the image
  reuse,  ///< start the stored container
  join,   ///< enter the running container
};

/// Kinds of an opened file or directory for file_identity(). The site's importer provides a new
/// file each time.
enum class FileKind { of_user, brought };
std::string file_identity(int file, FileKind kind);

/// Returns one text per image, independent of the working directory: canonical, with an absolute
/// path.
std::string known_as(const ImageLocation& location);

/// Decides the action. `state`: a TaskMessage::NamedState. `notes` are empty for a new container,
/// and for that of a step without a name.
Result<NamePlan> plan_for(const ContainerName& name, std::uint32_t state,
                          const ContainerNotes& notes, const WantedImage& wanted);

/// The leader's state of a named container, from the agent's answer to the end of the root's
/// set-up.
class NamedStart {
 public:
  /// Sends the name to the agent: first the running step, if the name has that form.
  Result<void> ask(const ContainerName& name, const std::string& job, bool of_job, int agent);
  /// Handles the answer. Returns false if it concerned the step, which is not running: the agent
  /// has been asked again, about the name.
  Result<bool> take_answer(const TaskMessage& answer, std::vector<UniqueFd> notes, int agent);
  Result<void> decide(const WantedImage& wanted);
  [[nodiscard]] NamePlan plan() const { return plan_; }
  /// Returns a line for the user if another job has made the container, whose state may surprise;
  /// otherwise an empty text.
  [[nodiscard]] std::string origin() const;

  /// Sets the image for the notes. `file`: the identity of a file or directory, otherwise empty.
  void will_be(const std::string& image, const std::string& file);
  [[nodiscard]] const ContainerNotes& notes() const { return notes_; }
  /// Returns whether this step creates the container.
  [[nodiscard]] bool is_new() const { return fresh_; }
  /// State of a running container.
  struct Running {
    std::uint32_t namespaces = 0;  ///< NamespaceBits
    bool read_only = false;
    std::uint64_t upper_size = 0;  ///< size limit in bytes of each writable part
  };
  [[nodiscard]] const Running& running() const { return running_; }
  [[nodiscard]] std::uint32_t namespaces() const { return running_.namespaces; }
  /// Returns whether the stored container needs a file or directory of the user.
  [[nodiscard]] bool needs_file() const { return !notes_.file.empty(); }
  /// Returns an Error unless the opened file or directory is the one from which the container was
  /// created.
  [[nodiscard]] Result<void> must_be_the_same(const std::string& file) const;

  /// Writes the notes of a new container, which makes it exist.
  Result<void> write(const Digest& manifest);
  /// Removes a partially set-up container by emptying its notes.
  void take_back();
  /// Removes the container. Programs in it continue to run, and its files are deleted when the last
  /// step in it has ended.
  Result<void> remove();

 private:
  Result<void> send(int agent) const;

  ContainerName name_;
  std::string job_;
  bool of_job_ = false;
  bool asked_for_step_ = false;
  std::uint32_t state_ = 0;
  NamePlan plan_ = NamePlan::make;
  Running running_;
  UniqueFd file_;
  ContainerNotes notes_;
  bool fresh_ = false;
};

// --- container index ---

// Index of a user's named containers by node. The store's directories for them are readable by root
// only. The step that creates a container writes a note in the user's home. If the note is lost,
// the next step that starts the container writes it again. No decision depends on the notes. A
// container that the site removes keeps its note until a step of the user requests it.

struct NotedContainer {
  ContainerNotes notes;
  std::string node;
  std::string job;           ///< job whose end removes it, if any
  std::int64_t made_at = 0;  ///< seconds since 1970
  /// JOB.STEP of steps with remapped root since its last start, which may have ended
  std::vector<std::string> steps;
  std::string path;  ///< path of the note
};

/// Returns the directory of the notes from $XDG_DATA_HOME or $HOME; empty if there is none.
std::string directory_of_container_notes(const std::map<std::string, std::string>& environment);

/// Returns all readable notes of the user, in no order.
std::vector<NotedContainer> noted_containers(const std::string& directory);

/// Returns the other nodes that have a container of this name, separated by commas: at most four;
/// empty if none is known. `of_job`: containers of the job, not of the user.
std::string other_nodes_with(const ContainerName& name, bool of_job,
                             const std::map<std::string, std::string>& environment);

/// The note of the container with this name on the step's node. Its file stays open, because it is
/// written from inside a container's root.
class ContainerNote {
 public:
  ContainerNote() = default;
  /// Opens the note. `environment`: the job's. Without a home directory the note is inactive.
  static ContainerNote open(const ContainerName& name, bool of_job,
                            const std::map<std::string, std::string>& environment);
  /// Writes the note; for a container that is not new, only if the note was lost.
  void write(const ContainerNotes& notes, bool is_new) const;
  /// Adds a step, JOB.STEP, of a container with remapped root: the kernel does not show the user
  /// the variables of its tasks. `joins`: the container was running.
  void add_step(const ContainerNotes& notes, const std::string& step, bool joins) const;
  void remove() const;

 private:
  UniqueFd directory_;
  std::string file_;
  std::string place_;  ///< records with node and job
};

// --- join check ---

/// Checks a step that joins a running container, whose properties are those requested by the step
/// that started it. Returns an Error if an option requests something else, or warns if the property
/// is unknown. `upper_size`: the bytes requested by --container-tmpfs-size.
Result<void> check_join(const LaunchRequest& asked, const NamedStart& named,
                        std::uint64_t upper_size, Log& log);

}  // namespace spc
