#include "launch/policy/plain_toml.hpp"

#include <algorithm>

namespace spc {
namespace {

bool is_letter_or_digit(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}
bool is_of_bare_key(char c) { return is_letter_or_digit(c) || c == '_' || c == '-'; }
bool is_of_word(char c) { return is_of_bare_key(c) || c == '+' || c == '.' || c == ':'; }

/// What is left to read. Each function takes its part away, or says that it is not there.
class PlainText {
 public:
  explicit PlainText(std::string_view text) : rest_(text) {}

  bool at_end() const { return rest_.empty(); }

  bool take(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t"), rest_.size())); }

  /// Blanks, a comment, and the end of the line or of the file.
  bool end_of_line() {
    blanks();
    if (rest_.starts_with('#')) rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
    if (rest_.starts_with("\r\n")) rest_.remove_prefix(1);
    return take('\n') || at_end();
  }

  void blank_lines() {
    for (std::string_view line = rest_; !at_end(); line = rest_) {
      if (end_of_line()) continue;
      rest_ = line;
      break;
    }
    blanks();
  }

  bool name(std::string& name) {
    blanks();
    if (!text(name)) name = run_of(is_of_bare_key);
    blanks();
    return !name.empty();
  }

  /// "..." or '...'; one with three quotes ends at the second, so that what follows is not plain.
  bool text(std::string& text) {
    if (!rest_.starts_with('"') && !rest_.starts_with('\'')) return false;
    const std::size_t end = rest_.find(rest_[0], 1);
    const std::string_view inside = rest_.substr(1, end - 1);
    const auto is_odd = [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '\\'; };
    if (end == std::string_view::npos || std::ranges::any_of(inside, is_odd)) return false;
    text = inside;
    rest_.remove_prefix(end + 1);
    return true;
  }

  bool list(std::vector<std::string>& texts) {
    for (blank_lines(); !take(']'); blank_lines()) {
      if (!text(texts.emplace_back())) return false;
      blank_lines();
      if (!take(',') && !rest_.starts_with(']')) return false;
    }
    return true;
  }

  bool value(PlainEntry& entry) {
    blanks();
    entry.kind = take('[') ? PlainEntry::Kind::list : PlainEntry::Kind::text;
    if (entry.kind == PlainEntry::Kind::list) return list(entry.texts) && end_of_line();
    std::string& text_or_word = entry.texts.emplace_back();
    if (!text(text_or_word)) {
      entry.kind = PlainEntry::Kind::word;
      text_or_word = run_of(is_of_word);
    }
    return (entry.kind == PlainEntry::Kind::text || !text_or_word.empty()) && end_of_line();
  }

 private:
  std::string run_of(bool (*fits)(char)) {
    const auto end = std::ranges::find_if_not(rest_, fits);
    std::string run(rest_.begin(), end);
    rest_.remove_prefix(run.size());
    return run;
  }

  std::string_view rest_;
};

/// The names in a header, behind its [.
bool read_table(PlainText& text, std::vector<std::string>& table) {
  table.clear();
  do {
    if (!text.name(table.emplace_back())) return false;
  } while (text.take('.'));
  return text.take(']') && text.end_of_line();
}

}  // namespace

std::optional<std::vector<PlainEntry>> read_plain_toml(std::string_view text) {
  std::vector<PlainEntry> entries;
  std::vector<std::string> table;
  PlainText rest(text);
  for (rest.blank_lines(); !rest.at_end(); rest.blank_lines()) {
    if (rest.take('[')) {
      if (!read_table(rest, table)) return std::nullopt;
      continue;
    }
    PlainEntry entry{.table = table, .key = {}, .texts = {}};
    if (!rest.name(entry.key) || !rest.take('=') || !rest.value(entry)) return std::nullopt;
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace spc
