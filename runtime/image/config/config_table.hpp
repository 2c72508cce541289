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

/// Reads the keys of one table into variables; missing keys leave them unchanged. An invalid value
/// is an Error with its line.
class TableReader {
 public:
  using Check = std::function<bool(const std::string&)>;

  /// `file` and `table` are borrowed. `prefix` stands before the keys in messages.
  TableReader(const std::string& file, const toml::value& table, std::string prefix)
      : file_(file), table_(table), prefix_(std::move(prefix)) {}

  /// There are no other keys than these.
  Result<void> check_keys(std::span<const std::string_view> known) const;

  /// Reads the keys of all rows into `owner`.
  template <typename Owner>
  Result<void> read_all(const auto& rows, Owner& owner) const {
    for (const KeyRow<Owner>& row : rows) {
      SPC_TRY(std::visit([&](auto member) { return read_row(row, owner.*member); }, row.sink));
    }
    return {};
  }

 private:
  Result<void> read(const char* name, bool& into) const;
  /// Text accepted by `check`; otherwise an error with `rule`.
  Result<void> read(const char* name, std::string& into, const Check& check,
                    const char* rule) const;
  /// A list of texts accepted by `check`; replaces the previous value.
  Result<void> read(const char* name, std::vector<std::string>& into, const Check& check,
                    const char* rule) const;
  /// One of a few words.
  Result<void> read_words(const char* name, std::vector<std::string>& into,
                          std::span<const std::string_view> words) const;
  Result<void> read_word(const char* name, std::string& into,
                         std::span<const std::string_view> words) const;

  template <typename Row>
  Result<void> read_row(const Row& row, bool& into) const {
    return read(row.name, into);
  }
  /// No key of a file.
  template <typename Row>
  Result<void> read_row(const Row&, std::optional<bool>&) const {
    return {};
  }
  template <typename Row>
  Result<void> read_row(const Row& row, std::string& into) const {
    if (row.check == nullptr) return read_word(row.name, into, words_of(row.type));
    return read(row.name, into, row.check, row.rule);
  }
  template <typename Row>
  Result<void> read_row(const Row& row, PullPolicy& into) const {
    std::string word = name_of(into);
    SPC_TRY(read_word(row.name, word, words_of(row.type)));
    text_to(into, word);
    return {};
  }
  template <typename Row>
  Result<void> read_row(const Row& row, std::vector<std::string>& into) const {
    if (row.words != nullptr) return read_words(row.name, into, row.words());
    return read(row.name, into, row.check, row.rule);
  }
  /// A whole number from 0 to `most`, or a size that `check` accepts.
  template <typename Row, typename Number>
  Result<void> read_row(const Row& row, Number& into) const {
    std::int64_t number = static_cast<std::int64_t>(into);
    SPC_TRY(row.check == nullptr ? read_number(row.name, number, row.most)
                                 : read_size(row.name, number, row.check, row.rule));
    into = static_cast<Number>(number);
    return {};
  }

  /// `a, b` is a and b.
  static std::vector<std::string_view> words_of(std::string_view type);
  [[nodiscard]] const toml::value* find(const char* name) const;
  [[nodiscard]] Error refuse(const toml::value& value, std::string_view name,
                             const std::string& why) const;
  [[nodiscard]] Result<std::string> text_of(const toml::value& value, const char* name) const;
  Result<void> each_of(
      const char* name, std::vector<std::string>& into,
      const std::function<Result<void>(const toml::value&, const std::string&)>& check) const;
  Result<void> check_word(const toml::value& value, const char* name, const std::string& text,
                          std::span<const std::string_view> words) const;
  Result<void> read_number(const char* name, std::int64_t& into, std::int64_t most) const;
  Result<void> read_size(const char* name, std::int64_t& into, const Check& check,
                         const char* rule) const;

  const std::string& file_;
  const toml::value& table_;
  std::string prefix_;
};

}  // namespace spc
