#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <toml.hpp>
#include <vector>

#include "image/config/config.hpp"

namespace spc {

/// An invalid value, with file and line.
Error config_error(const std::string& file, const toml::value& value, const std::string& why);

/// Reads the keys of one table into variables; missing keys leave them unchanged. An invalid value is an Error with its
/// line.
class TableReader {
 public:
  using Check = std::function<bool(const std::string&)>;

  /// `file` and `table` are borrowed. `prefix` precedes the keys in messages.
  TableReader(const std::string& file, const toml::value& table, std::string prefix, std::span<const ConfigKey> keys)
      : file_(file), table_(table), prefix_(std::move(prefix)), keys_(keys) {}

  /// Refuses keys other than `keys` and these tables.
  Result<void> check_keys(std::initializer_list<std::string_view> tables = {}) const;

  Result<void> read(const char* name, bool& into) const;
  /// Text accepted by `check`; otherwise an error with `rule`.
  Result<void> read(const char* name, std::string& into, const Check& check, const char* rule) const;
  /// A list of texts accepted by `check`; replaces the previous value.
  Result<void> read(const char* name, std::vector<std::string>& into, const Check& check, const char* rule) const;
  /// One of a few words.
  Result<void> read_words(const char* name, std::vector<std::string>& into, std::span<const std::string_view> words) const;
  Result<void> read_word(const char* name, std::string& into, std::span<const std::string_view> words) const;

  /// A whole number from 0 to `most`.
  template <typename Number>
  Result<void> read(const char* name, Number& into, std::int64_t most) const {
    std::int64_t number = static_cast<std::int64_t>(into);
    SPC_TRY(read_number(name, number, most));
    into = static_cast<Number>(number);
    return {};
  }

 private:
  [[nodiscard]] const toml::value* find(const char* name) const;
  [[nodiscard]] Error refuse(const toml::value& value, std::string_view name, const std::string& why) const;
  [[nodiscard]] Result<std::string> text_of(const toml::value& value, const char* name) const;
  Result<void> each_of(const char* name, std::vector<std::string>& into,
                       const std::function<Result<void>(const toml::value&, const std::string&)>& check) const;
  Result<void> check_word(const toml::value& value, const char* name, const std::string& text,
                          std::span<const std::string_view> words) const;
  Result<void> read_number(const char* name, std::int64_t& into, std::int64_t most) const;

  const std::string& file_;
  const toml::value& table_;
  std::string prefix_;
  std::span<const ConfigKey> keys_;
};

}  // namespace spc
