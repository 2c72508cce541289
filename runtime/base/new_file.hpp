#pragma once

#include <string>
#include <utility>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

enum class Replace { no, yes };

/// A file that gets its name when it is complete. Until then it is invisible, and it vanishes if
/// the process is killed. (On file systems without unnamed files, a hidden file remains.)
class NewFile {
 public:
  /// Creates the unnamed file. Refuses a directory at `path`, or a file that may not be replaced,
  /// immediately.
  static Result<NewFile> create(const std::string& path, Replace replace);
  /// Does the same without creating the file, which make() does.
  static Result<NewFile> plan(const std::string& path, Replace replace);
  Result<void> make();
  /// Undoes make().
  void unmake();
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  /// Sets another name in the same directory, if it becomes known only now.
  void will_be(std::string name) { name_ = std::move(name); }
  /// Returns the file, open for reading and writing.
  [[nodiscard]] int file() const { return file_.get(); }
  /// Adds this file's path to an error of writing it, such as a full file system.
  [[nodiscard]] Error about(Error error) const;
  /// Writes the file to disk and gives it its name atomically.
  Result<void> publish();

 private:
  NewFile() = default;
  std::string shown_as_;
  UniqueFd directory_;  // valid in any mount namespace
  std::string name_;
  std::string hidden_;  // temporary name; empty: unnamed
  Replace replace_ = Replace::no;
  UniqueFd file_;
};

}  // namespace spc
