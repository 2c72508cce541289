#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

enum class Replace { no, yes };

/// A file that gets its name when it is complete; before that, nothing of it can be seen, and nothing is left of it when we
/// are killed. (On file systems without nameless files, a hidden file is left then.)
class NewFile {
 public:
  /// A directory at `path`, or a file that may not be replaced, is refused at once.
  static Result<NewFile> create(const std::string& path, Replace replace);
  /// The same, but for the file itself: make() does that.
  static Result<NewFile> plan(const std::string& path, Replace replace);
  Result<void> make();
  /// Takes back what make() did.
  void unmake();
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  /// Open for reading and writing.
  [[nodiscard]] int file() const { return file_.get(); }
  /// Writes it to the disk and gives it its name, in one step.
  Result<void> publish();

 private:
  NewFile() = default;
  std::string shown_as_;
  UniqueFd directory_;  // stays what it was in whatever mount namespace we are then
  std::string name_;
  std::string hidden_;  // its name until then; empty: it has none
  Replace replace_ = Replace::no;
  UniqueFd file_;
};

}  // namespace spc
