#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/export/known_tree.hpp"
#include "image/export/new_file.hpp"
#include "image/export/write_image.hpp"

namespace spc {

/// A container as handed over by the leader.
struct SavedTree {
  UniqueFd root;          ///< without mounts
  std::string settings;   ///< records `key=value\0`: env, workdir, entrypoint, cmd
  std::string config;     ///< the image configuration; empty: none
  bool in_files = false;  ///< the image has its settings in files
  std::string manifest;   ///< of the image; empty: none
  std::string image;      ///< its name, if its changes are saved
  KnownTree known;        ///< what it was like, if its changes are saved
};
/// `record`: the image's; `settings`: of an image with files instead, or -1. `image`: its name, if
/// its changes are to be saved.
Result<SavedTree> read_saved_tree(UniqueFd root, int record, int settings,
                                  const std::string& image);

/// As root of a user namespace, so that files are read that not even their owner may read, such as
/// /etc/shadow of some images: all of them are the user's. Where there are no user namespaces, such
/// a file is an error with its name. The process must have one thread.
void enter_saver_namespace();

/// Writes one container to one file. Another thread may query its progress, and may end the process
/// at any moment: the file is then unchanged.
class Save {
 public:
  /// `file` is planned and not made.
  Save(ImageTarget target, NewFile file) : target_(std::move(target)), file_(std::move(file)) {}

  /// The unnamed file, and a process that can read the whole container.
  Result<void> prepare(const SavedTree& tree);
  /// Scans the whole tree first: unreadable files are reported before anything is written. `cpus`:
  /// maximum number of compressing threads; 0: as many as the step has CPUs.
  Result<void> run(const SavedTree& tree, unsigned cpus);

  /// Summary for the user.
  [[nodiscard]] std::string progress() const;
  [[nodiscard]] std::string summary(unsigned seconds) const;

  /// Gives up; nothing remains. The process must end afterwards, without waiting for anything.
  void abandon();

 private:
  ImageTarget target_;
  NewFile file_;
  std::mutex naming_;  ///< held while the file gets its name, and forever after giving up
  std::atomic<std::uint64_t> written_ = 0;
  std::atomic<std::uint64_t> total_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace spc
