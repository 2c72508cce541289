#pragma once

#include <string>
#include <utility>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

enum class Replace { no, yes };

/// A file that gets its name when it is complete; until then it is invisible, and nothing remains
/// if we are killed. (On file systems without unnamed files, a hidden file remains.)
class NewFile {
 public:
  /// A directory at `path`, or a file that may not be replaced, is refused immediately.
  static Result<NewFile> create(const std::string& path, Replace replace);
  /// The same without the file itself, which make() creates.
  static Result<NewFile> plan(const std::string& path, Replace replace);
  Result<void> make();
  /// Undoes make().
  void unmake();
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  /// Another name in the same directory, known only now.
  void will_be(std::string name) { name_ = std::move(name); }
  /// Open for reading and writing.
  [[nodiscard]] int file() const { return file_.get(); }
  /// The error of what filled it: a full file system is this file's.
  [[nodiscard]] Error about(Error error) const;
  /// Writes it to disk and gives it its name atomically.
  Result<void> publish();

 private:
  NewFile() = default;
  std::string shown_as_;
  UniqueFd directory_;  // valid in any mount namespace
  std::string name_;
  std::string hidden_;  // its name until then; empty: none
  Replace replace_ = Replace::no;
  UniqueFd file_;
};

}  // namespace spc
