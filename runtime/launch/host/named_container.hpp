#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/reference/location.hpp"
#include "launch/request/container_name.hpp"
#include "protocol/task.hpp"

namespace spc {

/// What the container of a name was made from; written into its notes by the first task of the step that made it.
struct ContainerNotes {
  std::string name;
  std::string image;   ///< as known_as() has it
  std::string digest;  ///< of an image of the store: its manifest's
  std::string file;    ///< of a file or directory: tells whether it is still the same

  static ContainerNotes parse(std::string_view records);
  [[nodiscard]] std::string serialize() const;
};

/// The image of a name as this step asks for it; empty members: not asked for, or not known.
struct WantedImage {
  std::string image;
  std::string digest;
};

/// What a step does about the container of its name.
enum class NamePlan {
  make,   ///< from the image
  reuse,  ///< what is stored
  join,   ///< what is running
};

/// What tells whether an opened file or directory is the same as before. What the site's importer brings is a new file each time.
enum class FileKind { of_user, brought };
std::string file_identity(int file, FileKind kind);

/// One text for one image, whatever the working directory is: canonical, and of a path the absolute one.
std::string known_as(const ImageLocation& location, const std::string& home);

/// `state`: a TaskMessage::NamedState. `notes` are empty for a new container, and for a step's that has no name.
Result<NamePlan> plan_for(const ContainerName& name, std::uint32_t state, const ContainerNotes& notes, const WantedImage& wanted);

/// The leading task's view of the container of a name, from the agent's answer to the end of furnishing.
class NamedStart {
 public:
  /// Asks the agent: for a running step first, if the name has that form.
  Result<void> ask(const ContainerName& name, bool of_job, int agent);
  /// Takes the answer. False: it was about the step, which does not run; the agent has been asked again.
  Result<bool> take_answer(const TaskMessage& answer, std::vector<UniqueFd> notes, int agent);
  Result<void> decide(const WantedImage& wanted);
  [[nodiscard]] NamePlan plan() const { return plan_; }

  /// What the container is made from, to be noted; `file`: the identity of a file or directory, else empty.
  void will_be(const std::string& image, const std::string& file);
  [[nodiscard]] const ContainerNotes& notes() const { return notes_; }
  /// Of a running container.
  [[nodiscard]] std::uint32_t namespaces() const { return namespaces_; }
  /// Whether what is stored is of use only with a file or directory of the user.
  [[nodiscard]] bool needs_file() const { return !notes_.file.empty(); }
  /// Whether the file or directory that was opened now is the one that the container is made of.
  [[nodiscard]] Result<void> must_be_the_same(const std::string& file) const;

  /// Writes the notes, if the container is new: from then on it exists.
  Result<void> write(const Digest& manifest);
  /// What was furnished half does not exist.
  void take_back();

 private:
  Result<void> send(int agent) const;

  ContainerName name_;
  bool of_job_ = false;
  bool asked_for_step_ = false;
  std::uint32_t state_ = 0;
  NamePlan plan_ = NamePlan::make;
  std::uint32_t namespaces_ = 0;
  UniqueFd file_;
  ContainerNotes notes_;
  bool fresh_ = false;
};

}  // namespace spc
