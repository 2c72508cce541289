#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// Files of the node below a root (host_root: empty but in tests). What is not there, or cannot be read, is empty: of a driver
/// that is half there the half is described.
class NodeFiles {
 public:
  explicit NodeFiles(std::string root) : root_(std::move(root)) {}

  [[nodiscard]] bool exists(const std::string& path) const;
  [[nodiscard]] bool is_regular(const std::string& path) const;  ///< itself or what a link leads to
  /// At most 64 KiB.
  [[nodiscard]] std::string text(const std::string& path) const;
  [[nodiscard]] std::string link(const std::string& path) const;
  /// The names in a directory that begin so, sorted with numbers as numbers. Links count.
  [[nodiscard]] std::vector<std::string> names(const std::string& directory, std::string_view prefix = "") const;
  /// Those that `wanted` picks; of a directory of thousands sorting all would take longer than reading it.
  [[nodiscard]] std::vector<std::string> names_if(const std::string& directory,
                                                  const std::function<bool(std::string_view)>& wanted) const;
  [[nodiscard]] std::string on_disk(const std::string& path) const { return root_ + path; }

 private:
  std::string root_;
};

/// Of "Name:   value" lines, the value of the first with this name; empty if there is none.
std::string field_of(std::string_view text, std::string_view name);

/// The number that `text` is, or -1.
int number_of(std::string_view text);

}  // namespace spc
