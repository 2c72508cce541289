#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

/// Files of the node below a root (host_root: empty except in tests). Missing or unreadable files
/// are empty: a partly installed driver is described as far as it is there.
class NodeFiles {
 public:
  explicit NodeFiles(std::string root) : root_(std::move(root)) {}

  [[nodiscard]] bool exists(const std::string& path) const;
  [[nodiscard]] bool is_regular(const std::string& path) const;  ///< itself or a link's target
  /// At most 64 KiB.
  [[nodiscard]] std::string text(const std::string& path) const;
  [[nodiscard]] std::string link(const std::string& path) const;
  /// The names in a directory with this prefix, in natural order, including links.
  [[nodiscard]] std::vector<std::string> names(const std::string& directory,
                                               std::string_view prefix = "") const;
  /// Those selected by `wanted`; for a directory of thousands, sorting all would take longer than
  /// reading it.
  [[nodiscard]] std::vector<std::string> names_if(
      const std::string& directory, const std::function<bool(std::string_view)>& wanted) const;
  [[nodiscard]] std::string on_disk(const std::string& path) const { return root_ + path; }

 private:
  std::string root_;
};

/// Of "Name:   value" lines, the value of the first with this name; empty if none.
std::string field_of(std::string_view text, std::string_view name);
}  // namespace spc
