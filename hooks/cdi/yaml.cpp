// YAML as nvidia-ctk and the like write it: a tree by indentation. No anchors, tags, flow collections, block texts, texts over
// several lines, further documents: a reader that knows less can be wrong about less. What a plain text means is decided as Go's
// YAML does for these files: whole numbers (0x, 0o and a leading 0 too) and null; everything else is text.

#include <charconv>
#include <string>
#include <vector>

#include "hooks/cdi/document.hpp"

namespace spc {
namespace {

using Json = nlohmann::json;

struct Line {
  std::size_t number;     ///< from 1
  std::size_t indent;     ///< spaces before the text
  std::string_view text;  ///< without indentation, comment and spaces at its end; never empty
};

Error at(std::size_t line, const std::string& why) {
  return Error(ErrorKind::corrupt, "line " + std::to_string(line) + ": " + why);
}
Error unsupported(std::size_t line, const std::string& what) { return at(line, "unsupported YAML: " + what); }

bool is_space(char c) { return c == ' ' || c == '\t'; }

std::string_view without_end_spaces(std::string_view text) {
  while (!text.empty() && (is_space(text.back()) || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

std::string_view without_spaces_before(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  return text;
}

/// The length of a quoted text with its quotes, or npos if it does not end.
std::size_t quoted_length(std::string_view text) {
  const char quote = text.front();
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '\'' && i + 1 < text.size() && text[i + 1] == quote) {
        ++i;
      } else {
        return i + 1;
      }
    }
  }
  return std::string_view::npos;
}

/// A `#` begins a comment at the start or after a space, outside of quotes. Quotes count only where a text can begin.
std::string_view without_comment(std::string_view text) {
  bool can_begin = true;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#' && (i == 0 || is_space(text[i - 1]))) return without_end_spaces(text.substr(0, i));
    if ((c == '"' || c == '\'') && can_begin) {
      const auto length = quoted_length(text.substr(i));
      if (length == std::string_view::npos) break;
      i += length - 1;
      can_begin = false;
    } else if (!is_space(c)) {
      // After `- ` and `KEY: ` another text begins.
      can_begin = (c == '-' && can_begin) || c == ':';
    } else if (i > 0 && text[i - 1] != '-' && text[i - 1] != ':' && !is_space(text[i - 1])) {
      can_begin = false;
    }
  }
  return without_end_spaces(text);
}

/// Reads what stands between the quotes.
Result<std::string> unquote(std::string_view text, std::size_t line) {
  const char quote = text.front();
  text = text.substr(1, text.size() - 2);
  std::string value;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (quote == '\'') {
      value += text[i];
      if (text[i] == '\'') ++i;  // two of them stand for one
      continue;
    }
    if (text[i] != '\\') {
      value += text[i];
      continue;
    }
    const char c = ++i < text.size() ? text[i] : '\0';
    constexpr std::string_view kEscapes = "\"\\/abefnrtv ";
    constexpr std::string_view kMeanings = "\"\\/\a\b\x1b\f\n\r\t\v ";
    if (const auto known = kEscapes.find(c); c != '\0' && known != std::string_view::npos) {
      value += kMeanings[known];
      continue;
    }
    // \uXXXX and \xXX as programs write them for what a terminal would not show.
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 0;
    unsigned code = 0;
    if (digits == 0 || text.size() - i <= digits) return unsupported(line, "this escape sequence");
    const char* const begin = text.data() + i + 1;
    const auto [end, error] = std::from_chars(begin, begin + digits, code, 16);
    if (error != std::errc() || end != begin + digits || code == 0) return unsupported(line, "this escape sequence");
    if (code >= 0xd800 && code < 0xe000) return unsupported(line, "this escape sequence");
    if (code < 0x80) {
      value += static_cast<char>(code);
    } else if (code < 0x800) {
      value += static_cast<char>(0xc0 | (code >> 6));
      value += static_cast<char>(0x80 | (code & 0x3f));
    } else {
      value += static_cast<char>(0xe0 | (code >> 12));
      value += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
      value += static_cast<char>(0x80 | (code & 0x3f));
    }
    i += digits;
  }
  return value;
}

Json plain_value(std::string_view text) {
  if (text == "null" || text == "~" || text == "Null" || text == "NULL") return nullptr;
  const bool negative = text.starts_with('-');
  std::string_view digits = text.substr(negative || text.starts_with('+') ? 1 : 0);
  int base = 10;
  if (digits.starts_with("0x")) {
    base = 16;
    digits.remove_prefix(2);
  } else if (digits.starts_with("0o")) {
    base = 8;
    digits.remove_prefix(2);
  } else if (digits.size() > 1 && digits[0] == '0') {
    base = 8;
  }
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (!digits.empty() && digits[0] != '-' && error == std::errc() && end == digits.data() + digits.size()) {
    return negative ? -number : number;
  }
  return std::string(text);
}

class Reader {
 public:
  explicit Reader(std::vector<Line> lines) : lines_(std::move(lines)) {}

  Result<Json> document() {
    if (lines_.empty()) return Error(ErrorKind::corrupt, "is empty");
    auto value = SPC_TRY(block(lines_.front().indent, 0));
    if (next_ < lines_.size()) return at(lines_[next_].number, "does not belong to the previous line");
    return value;
  }

 private:
  [[nodiscard]] const Line& here() const { return lines_[next_]; }
  [[nodiscard]] bool at_item() const { return here().text == "-" || here().text.starts_with("- "); }

  Result<void> count() {
    if (++values_ <= kCdiMostValues) return {};
    return at(here().number, "more than " + std::to_string(kCdiMostValues) + " values");
  }

  /// The lines from here on that are indented like the first.
  Result<Json> block(std::size_t indent, std::size_t depth) {
    if (depth >= kCdiMostDepth) return at(here().number, "is nested too deep");
    if (at_item()) return sequence(indent, depth);
    const bool is_other = std::string_view("[{&*!").find(here().text.front()) != std::string_view::npos;
    if (!is_other && key_length(here().text) != std::string_view::npos) return map(indent, depth);
    const Line line = here();
    ++next_;
    return scalar(line.text, line.number);
  }

  Result<Json> sequence(std::size_t indent, std::size_t depth) {
    Json items = Json::array();
    while (next_ < lines_.size() && here().indent == indent && at_item()) {
      SPC_TRY(count());
      Line& line = lines_[next_];
      const std::string_view rest = without_spaces_before(line.text.substr(1));
      if (rest.empty()) {
        ++next_;
        items.push_back(SPC_TRY(below(indent, depth)));
        continue;
      }
      // What stands behind the dash is a block of its own, which begins in that column.
      line.indent += static_cast<std::size_t>(rest.data() - line.text.data());
      line.text = rest;
      items.push_back(SPC_TRY(block(line.indent, depth + 1)));
    }
    return items;
  }

  Result<Json> map(std::size_t indent, std::size_t depth) {
    Json members = Json::object();
    while (next_ < lines_.size() && here().indent == indent && !at_item()) {
      SPC_TRY(count());
      const Line line = here();
      const auto length = key_length(line.text);
      if (length == std::string_view::npos) return at(line.number, "neither `KEY: VALUE` nor `- VALUE`");
      const std::string key = SPC_TRY(key_of(line.text.substr(0, length), line.number));
      if (members.contains(key)) return at(line.number, "key " + in_quotes(key) + " is given twice");
      const std::string_view rest = without_spaces_before(line.text.substr(length + 1));
      ++next_;
      if (!rest.empty()) {
        members[key] = SPC_TRY(scalar(rest, line.number));
      } else if (next_ < lines_.size() && here().indent == indent && at_item()) {
        members[key] = SPC_TRY(block(indent, depth + 1));  // a sequence may stand in the column of its key
      } else {
        members[key] = SPC_TRY(below(indent, depth));
      }
    }
    return members;
  }

  /// What is indented more than `indent`; null if nothing is.
  Result<Json> below(std::size_t indent, std::size_t depth) {
    if (next_ == lines_.size() || here().indent <= indent) return Json(nullptr);
    return block(here().indent, depth + 1);
  }

  /// Up to the colon behind a key; npos if there is none.
  static std::size_t key_length(std::string_view text) {
    std::size_t i = 0;
    if (text.front() == '"' || text.front() == '\'') {
      i = quoted_length(text);
      if (i == std::string_view::npos) return i;
      while (i < text.size() && is_space(text[i])) ++i;
      return i < text.size() && text[i] == ':' ? i : std::string_view::npos;
    }
    for (; i < text.size(); ++i) {
      if (text[i] == ':' && (i + 1 == text.size() || is_space(text[i + 1]))) return i;
    }
    return std::string_view::npos;
  }

  Result<std::string> key_of(std::string_view text, std::size_t line) {
    text = without_end_spaces(text);
    if (text.empty()) return unsupported(line, "an empty key");
    if (text.front() == '"' || text.front() == '\'') return unquote(text, line);
    if (std::string_view("&*!|>%@`[{?,]}#").find(text.front()) != std::string_view::npos) {
      return unsupported(line, "a key starting with " + std::string(1, text.front()));
    }
    return std::string(text);
  }

  Result<Json> scalar(std::string_view text, std::size_t line) {
    SPC_TRY_DURING("line " + std::to_string(line), too_many());
    if (next_ < lines_.size() && continues(line)) return unsupported(lines_[next_].number, "a multi-line string");
    if (text == "[]") return Json::array();
    if (text == "{}") return Json::object();
    switch (text.front()) {
      case '"':
      case '\'': {
        const auto length = quoted_length(text);
        if (length == std::string_view::npos) return unsupported(line, "a multi-line string");
        if (length != text.size()) return at(line, "text after a quoted string");
        return Json(SPC_TRY(unquote(text, line)));
      }
      case '&': return unsupported(line, "an anchor");
      case '*': return unsupported(line, "an alias");
      case '!': return unsupported(line, "a tag");
      case '|':
      case '>': return unsupported(line, "a multi-line string");
      case '[':
      case '{': return unsupported(line, "a flow collection");
      case '%':
      case '@':
      case '`':
      case ',':
      case ']':
      case '}': return unsupported(line, "a string starting with " + std::string(1, text.front()));
      case '?':
      case '-':
        if (text.size() == 1 || is_space(text[1])) return unsupported(line, "this use of " + std::string(1, text.front()));
        break;
      default: break;
    }
    if (text.find(": ") != std::string_view::npos || text.back() == ':') return at(line, "two keys in one line");
    return plain_value(text);
  }

  Result<void> too_many() {
    if (++values_ <= kCdiMostValues) return {};
    return Error(ErrorKind::corrupt, "more than " + std::to_string(kCdiMostValues) + " values");
  }

  /// Whether the next line would belong to the text of the line `number` before it: it is indented more than that line's block.
  [[nodiscard]] bool continues(std::size_t number) const {
    for (std::size_t i = next_; i > 0; --i) {
      if (lines_[i - 1].number == number) return lines_[next_].indent > lines_[i - 1].indent;
    }
    return false;
  }

  std::vector<Line> lines_;
  std::size_t next_ = 0;
  std::size_t values_ = 0;
};

}  // namespace

Result<Json> parse_cdi_yaml(std::string_view text) {
  std::vector<Line> lines;
  bool begun = false;
  bool ended = false;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto length = text.find('\n');
    std::string_view line = text.substr(0, length);
    text.remove_prefix(length == std::string_view::npos ? text.size() : length + 1);
    if (line.find('\0') != std::string_view::npos) return at(number, "a NUL character");
    const auto indent = line.find_first_not_of(' ');
    line = without_comment(indent == std::string_view::npos ? std::string_view() : line.substr(indent));
    if (line.empty()) continue;
    if (line.front() == '\t') return unsupported(number, "a tab as indentation");
    if (ended) return unsupported(number, "more than one document");
    if (indent == 0 && line == "---") {
      if (begun) return unsupported(number, "more than one document");
      begun = true;
      continue;
    }
    if (indent == 0 && line == "...") {
      ended = true;
      continue;
    }
    if (indent == 0 && line.front() == '%') return unsupported(number, "a directive");
    begun = true;
    lines.push_back({number, indent, line});
  }
  auto tree = SPC_TRY(Reader(std::move(lines)).document());
  try {
    [[maybe_unused]] const std::string all_is_utf8 = tree.dump();
  } catch (const std::exception&) {
    return Error(ErrorKind::corrupt, "is not UTF-8");
  }
  return tree;
}

}  // namespace spc
