#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// The texts of config.toml, beyond the numbers of the PolicyRecord, for the user's side of a start, such as default mounts.
/// They follow the record in /run/spank-container/policy as `key=value\0`, in file order, with the keys of
/// config.toml; missing keys have their defaults. Written by `import policy`, which has checked every value.
class Site {
 public:
  Site() = default;
  /// From the file that the agent passes to the leader: the texts belong to the record it has sent.
  static Result<Site> of(int policy_file);
  /// For followers and other readers: the current policy; empty if it cannot be read.
  static Site read();
  static Site parse(std::string_view records);
  /// Settings of plugstack.conf, KEY=VALUE, which take precedence.
  void override_with(const std::vector<std::string>& settings);

  /// The last value of a key, or the default.
  [[nodiscard]] std::string text(std::string_view key, std::string_view otherwise = "") const;
  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const;  ///< "true" or "false"
  /// All values of a key, such as a list.
  [[nodiscard]] std::vector<std::string> all(std::string_view key) const;

  /// All keys with their values, in order.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& records() const { return records_; }

  /// Adds a value of a key after the existing ones.
  void add(std::string_view key, std::string_view value) { records_.emplace_back(key, value); }

 private:
  std::vector<std::pair<std::string, std::string>> records_;
};

}  // namespace spc
