#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/reference/location.hpp"
#include "launch/request/container_name.hpp"
#include "protocol/task.hpp"

namespace spc {

/// The image a named container was created from; written into its notes by the leader of the step
/// that created it.
struct ContainerNotes {
  std::string name;
  std::string image;   ///< from known_as()
  std::string digest;  ///< of an image in the store: its manifest's
  std::string file;    ///< of a file or directory: identifies it

  static ContainerNotes parse(std::string_view records);
  [[nodiscard]] std::string serialize() const;
};

/// The image of a named container as requested by this step; empty members: not requested, or
/// unknown.
struct WantedImage {
  std::string image;
  std::string digest;
};

/// What a step does with the container of its name.
enum class NamePlan {
  make,   ///< from the image
  reuse,  ///< the stored container
  join,   ///< the running container
};

/// Identifies an opened file or directory. The site's importer provides a new file each time.
enum class FileKind { of_user, brought };
std::string file_identity(int file, FileKind kind);

/// One text per image, whatever the working directory: canonical, with an absolute path.
std::string known_as(const ImageLocation& location, const std::string& home);

/// `state`: a TaskMessage::NamedState. `notes` are empty for a new container, and for that of a
/// step without a name.
Result<NamePlan> plan_for(const ContainerName& name, std::uint32_t state,
                          const ContainerNotes& notes, const WantedImage& wanted);

/// The leading task's view of the container of a name, from the agent's answer to the end of the
/// root's set-up.
class NamedStart {
 public:
  /// Asks the agent: for a running step first, if the name has that form.
  Result<void> ask(const ContainerName& name, bool of_job, int agent);
  /// Handles the answer. False: it was about the step, which is not running; the agent has been
  /// asked again.
  Result<bool> take_answer(const TaskMessage& answer, std::vector<UniqueFd> notes, int agent);
  Result<void> decide(const WantedImage& wanted);
  [[nodiscard]] NamePlan plan() const { return plan_; }

  /// The image for the notes; `file`: the identity of a file or directory, otherwise empty.
  void will_be(const std::string& image, const std::string& file);
  [[nodiscard]] const ContainerNotes& notes() const { return notes_; }
  /// Whether this step makes it.
  [[nodiscard]] bool is_new() const { return fresh_; }
  /// How a running container is.
  struct Running {
    std::uint32_t namespaces = 0;  ///< NamespaceBits
    bool read_only = false;
    std::uint64_t upper_size = 0;  ///< bytes that can be written in each place
  };
  [[nodiscard]] const Running& running() const { return running_; }
  [[nodiscard]] std::uint32_t namespaces() const { return running_.namespaces; }
  /// Whether the stored container can only be used with a file or directory of the user.
  [[nodiscard]] bool needs_file() const { return !notes_.file.empty(); }
  /// Whether the opened file or directory is the one the container was created from.
  [[nodiscard]] Result<void> must_be_the_same(const std::string& file) const;

  /// Writes the notes of a new container: from now on it exists.
  Result<void> write(const Digest& manifest);
  /// What was set up half does not exist.
  void take_back();
  /// From now on it does not exist. What runs in it goes on, and its files go when the last step in
  /// it has ended.
  Result<void> remove();

 private:
  Result<void> send(int agent) const;

  ContainerName name_;
  bool of_job_ = false;
  bool asked_for_step_ = false;
  std::uint32_t state_ = 0;
  NamePlan plan_ = NamePlan::make;
  Running running_;
  UniqueFd file_;
  ContainerNotes notes_;
  bool fresh_ = false;
};

}  // namespace spc
