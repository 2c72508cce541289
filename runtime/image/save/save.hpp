#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/export/new_file.hpp"
#include "image/export/write_image.hpp"

namespace spc {

/// A container as the first task has handed it over.
struct SavedTree {
  UniqueFd root;          ///< nothing is mounted in it
  std::string settings;   ///< records `key=value\0`: env, workdir, entrypoint, cmd
  std::string config;     ///< the image's configuration; empty: it has none
  bool in_files = false;  ///< the image says in files of its own how it is run
};
/// `record`: the image's; `settings`: what is known of an image that has files instead, or -1.
Result<SavedTree> read_saved_tree(UniqueFd root, int record, int settings);

/// One container becoming one file. Another thread may look at how far it is, and may end the process at any moment: the
/// file then is as it was before.
class Save {
 public:
  /// `file` is planned and not made.
  Save(ImageTarget target, NewFile file) : target_(std::move(target)), file_(std::move(file)) {}

  /// The file, without a name yet, and a process that can read all of the container; it must have one thread.
  Result<void> prepare();
  /// Looks at all of the tree first: what cannot be read is named before anything is written. `cpus`: threads that compress,
  /// at most; 0: as many as the step has CPUs.
  Result<void> run(const SavedTree& tree, unsigned cpus);

  /// For people, of what has been done.
  [[nodiscard]] std::string progress() const;
  [[nodiscard]] std::string summary(unsigned seconds) const;

  /// Gives up; nothing is left. Afterwards the process must end, without waiting for anything.
  void abandon();

 private:
  ImageTarget target_;
  NewFile file_;
  std::mutex naming_;  ///< held while the file gets its name, and for ever by who gives up
  std::atomic<std::uint64_t> written_ = 0;
  std::atomic<std::uint64_t> total_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace spc
