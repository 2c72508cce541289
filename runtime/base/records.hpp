#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace spc {

/// Texts of the form `key=value`, each ended by NUL, one behind the other: what our processes write
/// for each other where the number and length of texts is not known. Keys may be repeated, and keep
/// their order.
///
///   for (Records records(text); records.next();) {
///     if (records.key() == "workdir") workdir = records.value();
///   }
class Records {
 public:
  explicit Records(std::string_view bytes) : rest_(bytes) {}

  /// Goes on to the next one; false behind the last. What has no `=` is passed over.
  bool next() {
    while (!rest_.empty()) {
      const std::size_t end = std::min(rest_.find('\0'), rest_.size());
      const std::string_view record = rest_.substr(0, end);
      damaged_ = damaged_ || end == rest_.size();
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      const std::size_t equals = record.find('=');
      damaged_ = damaged_ || equals == std::string_view::npos;
      if (equals == std::string_view::npos) continue;
      key_ = record.substr(0, equals);
      value_ = record.substr(equals + 1);
      return true;
    }
    return false;
  }
  [[nodiscard]] std::string_view key() const { return key_; }
  [[nodiscard]] std::string_view value() const { return value_; }
  /// One so far had no `=`, or the last is not ended.
  [[nodiscard]] bool damaged() const { return damaged_; }

 private:
  std::string_view rest_, key_, value_;
  bool damaged_ = false;
};

inline void add_record(std::string& records, std::string_view key, std::string_view value) {
  records.append(key).append("=").append(value).push_back('\0');
}

}  // namespace spc
