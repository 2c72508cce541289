#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// What config.toml says beyond the numbers of the PolicyRecord: texts for the user's side of a start, such as default mounts.
/// They follow the record in /run/spank-container/policy as `key=value\0`, in the file's order, under the names of
/// config.toml; a key that is not there has its default. Made by `import policy`, which has checked every value.
class Site {
 public:
  Site() = default;
  /// From the file that the agent hands to the leading task: the texts belong to the record that it has sent.
  static Result<Site> of(int policy_file);
  /// For the other tasks and for whoever only wants to know: as the policy is now; empty when it cannot be read.
  static Site read();
  static Site parse(std::string_view records);
  /// What plugstack.conf sets: KEY=VALUE texts, which win.
  void override_with(const std::vector<std::string>& settings);

  /// The last value of a key, or what is given.
  [[nodiscard]] std::string text(std::string_view key, std::string_view otherwise = "") const;
  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const;  ///< written "true" or "false"
  /// All values of a key, of a list for example.
  [[nodiscard]] std::vector<std::string> all(std::string_view key) const;

  /// All keys with their values, in order.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& records() const { return records_; }

  /// Another value of a key, behind those that there are.
  void add(std::string_view key, std::string_view value) { records_.emplace_back(key, value); }

 private:
  std::vector<std::pair<std::string, std::string>> records_;
};

}  // namespace spc
