#include "recipe/recipe.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <tuple>
#include <utility>

#include "base/format.hpp"
#include "base/json.hpp"
#include "base/text.hpp"

namespace spc {

// --- variables ---

namespace {

bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool continues_name(char c) { return begins_name(c) || (c >= '0' && c <= '9'); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Splits and expands the words of an instruction, as a shell without commands does.
class Expander {
 public:
  Expander(std::string_view text, const Variables& variables, char escape)
      : text_(text), variables_(variables), escape_(escape) {}

  Result<std::vector<std::string>> words() {
    while (at_ < text_.size()) {
      if (is_blank(text_[at_])) {
        end_word();
        ++at_;
        continue;
      }
      SPC_TRY(part(word_));
    }
    end_word();
    return std::move(words_);
  }

  Result<std::string> whole() {
    std::string result;
    while (at_ < text_.size()) SPC_TRY(part(result));
    return result;
  }

 private:
  void end_word() {
    if (!word_.empty() || quoted_) words_.push_back(std::move(word_));
    word_.clear();
    quoted_ = false;
  }

  /// Appends the next part of the text: a quoted text, a variable or one character.
  Result<void> part(std::string& into) {
    const char c = text_[at_];
    if (c == '\'') return single_quoted(into);
    if (c == '"') return double_quoted(into);
    if (c == '$') return variable(into);
    if (c == escape_ && at_ + 1 < text_.size()) ++at_;
    if (c == escape_ && at_ + 1 == text_.size()) {
      ++at_;
      return {};
    }
    into += text_[at_++];
    return {};
  }

  Result<void> single_quoted(std::string& into) {
    quoted_ = true;
    const auto end = text_.find('\'', at_ + 1);
    if (end == std::string_view::npos)
      return Error(ErrorKind::invalid, "a single quote has no counterpart");
    into += text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return {};
  }

  Result<void> double_quoted(std::string& into) {
    quoted_ = true;
    for (++at_; at_ < text_.size();) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return {};
      }
      if (c == '$') {
        SPC_TRY(variable(into));
        continue;
      }
      const bool escapes =
          c == escape_ && at_ + 1 < text_.size() &&
          (text_[at_ + 1] == '"' || text_[at_ + 1] == '$' || text_[at_ + 1] == escape_);
      if (escapes) ++at_;
      into += text_[at_++];
    }
    return Error(ErrorKind::invalid, "a double quote has no counterpart");
  }

  const std::string* value_of(std::string_view name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? nullptr : &found->second;
  }

  Result<void> variable(std::string& into) {
    ++at_;  // the $
    if (at_ == text_.size() || (text_[at_] != '{' && !begins_name(text_[at_]))) {
      into += '$';
      return {};
    }
    if (text_[at_] == '{') return braced(into);
    const auto begin = at_;
    while (at_ < text_.size() && continues_name(text_[at_])) ++at_;
    if (const auto* const value = value_of(text_.substr(begin, at_ - begin))) into += *value;
    return {};
  }

  /// Reads the word after an operator of ${…}: expanded, up to `end` or the closing brace.
  Result<std::string> operand(char end = '}') {
    std::string word;
    const bool outer = quoted_;
    while (at_ < text_.size() && text_[at_] != end && text_[at_] != '}') SPC_TRY(part(word));
    quoted_ = outer;
    return word;
  }

  Result<void> braced(std::string& into) {
    const auto begin = ++at_;
    while (at_ < text_.size() && continues_name(text_[at_])) ++at_;
    const std::string name(text_.substr(begin, at_ - begin));
    if (name.empty()) return Error(ErrorKind::invalid, "${} names no variable");
    const auto left = text_.substr(at_);
    std::string_view form;
    for (const std::string_view one :
         {":-", ":+", ":?", "##", "%%", "//", "-", "+", "?", "#", "%", "/"}) {
      if (form.empty() && left.starts_with(one)) form = one;
    }
    at_ += form.size();
    std::string word;
    if (!form.empty()) word = SPC_TRY(operand(form[0] == '/' ? '/' : '}'));
    std::string other;
    if (!form.empty() && form[0] == '/' && at_ < text_.size() && text_[at_] == '/') {
      ++at_;
      other = SPC_TRY(operand());
    }
    if (at_ == text_.size() || text_[at_] != '}') {
      return Error(ErrorKind::invalid,
                   formatted("${{{}: has no closing brace, or an unknown form", name));
    }
    ++at_;
    into += SPC_TRY(substituted(name, form, word, other));
    return {};
  }

  Result<std::string> substituted(const std::string& name, std::string_view form,
                                  const std::string& word, const std::string& other) const {
    const std::string* const value = value_of(name);
    const bool counts = value != nullptr && (form.empty() || form[0] != ':' || !value->empty());
    const std::string own = value == nullptr ? std::string() : *value;
    if (form.empty()) return own;
    switch (form.back()) {
      case '-': return counts ? own : word;
      case '+': return counts ? word : std::string();
      case '?':
        if (counts) return own;
        return Error(ErrorKind::invalid,
                     formatted("{}: {}", name, word.empty() ? "is not set" : word));
      case '#': return without_prefix(own, word, form.size() == 2);
      case '%': return without_suffix(own, word, form.size() == 2);
      default: return replaced(own, word, other, form.size() == 2);
    }
  }

  static std::string without_prefix(const std::string& own, const std::string& pattern,
                                    bool longest) {
    std::optional<std::size_t> found;
    for (std::size_t size = 0; size <= own.size(); ++size) {
      if (!matches_glob(pattern, own.substr(0, size))) continue;
      found = size;
      if (!longest) break;
    }
    return own.substr(found.value_or(0));
  }

  static std::string without_suffix(const std::string& own, const std::string& pattern,
                                    bool longest) {
    std::optional<std::size_t> found;
    for (std::size_t begin = own.size() + 1; begin-- > 0;) {
      if (!matches_glob(pattern, own.substr(begin))) continue;
      found = begin;
      if (!longest) break;
    }
    return own.substr(0, found.value_or(own.size()));
  }

  static std::string replaced(const std::string& own, const std::string& pattern,
                              const std::string& other, bool all) {
    std::string result;
    for (std::size_t at = 0; at < own.size();) {
      std::size_t size = 0;
      for (std::size_t one = own.size() - at; one > 0 && size == 0; --one) {
        if (matches_glob(pattern, own.substr(at, one))) size = one;
      }
      if (size == 0) {
        result += own[at++];
        continue;
      }
      result += other;
      at += size;
      if (!all) return result + own.substr(at);
    }
    return result;
  }

  std::string_view text_;
  const Variables& variables_;
  char escape_;
  std::size_t at_ = 0;
  std::string word_;
  bool quoted_ = false;  // an empty pair of quotes is a word
  std::vector<std::string> words_;
};

/// Returns the size of the bracket expression at the pattern's begin if `c` is in it; 0 if not.
std::size_t bracket(std::string_view pattern, char c, bool& is_in) {
  std::size_t at = 1;
  const bool negated = at < pattern.size() && (pattern[at] == '^' || pattern[at] == '!');
  if (negated) ++at;
  bool found = false;
  for (const std::size_t first = at; at < pattern.size(); ++at) {
    if (pattern[at] == ']' && at > first) {
      is_in = found != negated;
      return at + 1;
    }
    if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
      found = found || (pattern[at] <= c && c <= pattern[at + 2]);
      at += 2;
    } else {
      found = found || pattern[at] == c;
    }
  }
  return 0;  // no closing bracket: the bracket is itself
}

/// Matches one component or, with `crosses`, any text. Linear in the text for each star: on a
/// mismatch only the last star takes more.
bool matches(std::string_view pattern, std::string_view text, bool crosses) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t taken = 0;
  while (t < text.size()) {
    std::size_t used = 0;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
      continue;
    }
    if (p < pattern.size() && (crosses || text[t] != '/')) {
      bool is_in = false;
      std::size_t size = pattern[p] == '[' ? bracket(pattern.substr(p), text[t], is_in) : 0;
      if (size > 0) {
        used = is_in ? size : 0;
      } else if (pattern[p] == '?') {
        used = 1;
      } else if (pattern[p] == '\\' && p + 1 < pattern.size()) {
        used = pattern[p + 1] == text[t] ? 2 : 0;
      } else {
        used = pattern[p] == text[t] ? 1 : 0;
      }
    } else if (p < pattern.size() && pattern[p] == '/') {
      used = 1;
    }
    if (used > 0) {
      p += used;
      ++t;
      continue;
    }
    if (star == std::string_view::npos || (!crosses && text[taken] == '/')) return false;
    p = star + 1;
    t = ++taken;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

bool matches_glob(std::string_view pattern, std::string_view text) {
  return matches(pattern, text, true);
}

Result<std::string> expand(std::string_view text, const Variables& variables, char escape) {
  return Expander(text, variables, escape).whole();
}

Result<std::vector<std::string>> expand_words(std::string_view text, const Variables& variables,
                                              char escape) {
  return Expander(text, variables, escape).words();
}

// --- Dockerfile ---

namespace {

/// The syntax of an instruction.
struct Form {
  std::string_view name;
  bool takes_list = false;       ///< the JSON form
  bool takes_documents = false;  ///< here-documents
  std::array<std::string_view, 10> flags{};
};

constexpr std::array<Form, 18> kForms{{
    {"ADD",
     true,
     true,
     {"chown", "chmod", "link", "checksum", "keep-git-dir", "exclude", "unpack"}},
    {"ARG"},
    {"CMD", true},
    {"COPY", true, true, {"from", "chown", "chmod", "link", "parents", "exclude"}},
    {"ENTRYPOINT", true},
    {"ENV"},
    {"EXPOSE"},
    {"FROM", false, false, {"platform"}},
    {"HEALTHCHECK",
     false,
     false,
     {"interval", "timeout", "start-period", "start-interval", "retries"}},
    {"LABEL"},
    {"MAINTAINER"},
    {"ONBUILD"},
    {"RUN", true, true, {"mount", "network", "security"}},
    {"SHELL", true},
    {"STOPSIGNAL"},
    {"USER"},
    {"VOLUME", true},
    {"WORKDIR"},
}};

const Form* form_of(std::string_view name) {
  const auto* const found = std::find_if(kForms.begin(), kForms.end(),
                                         [&](const Form& form) { return form.name == name; });
  return found == kForms.end() ? nullptr : &*found;
}

std::string_view left_trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  return text;
}

std::string upper_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

/// Reads the lines of a Dockerfile and joins them into instructions.
class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);
  }

  Result<Dockerfile> read() {
    SPC_TRY(directives());
    while (auto line = next_line()) {
      const unsigned number = line_;
      std::string_view words = left_trimmed(*line);
      if (words.empty() || words.front() == '#') continue;
      std::string joined = join(words);
      SPC_TRY(add(std::move(joined), number));
    }
    if (file_.instructions.empty())
      return Error(ErrorKind::invalid, formatted("{}: has no instruction", name_))
          .hint("the first instruction is FROM IMAGE");
    return std::move(file_);
  }

 private:
  Error wrong(unsigned line, const std::string& reason) const {
    return {ErrorKind::invalid, formatted("{}:{}: {}", name_, line, reason)};
  }

  std::optional<std::string_view> next_line() {
    if (at_ >= text_.size()) return std::nullopt;
    const auto end = std::min(text_.find('\n', at_), text_.size());
    auto line = text_.substr(at_, end - at_);
    at_ = end + 1;
    ++line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  /// Reads `# escape=` and the like, which stand before all else.
  Result<void> directives() {
    while (at_ < text_.size()) {
      const auto before = std::pair(at_, line_);
      std::string_view line = trimmed(*next_line());
      const auto equals = line.find('=');
      if (!line.starts_with('#') || equals == std::string_view::npos) {
        std::tie(at_, line_) = before;
        return {};
      }
      const std::string key = upper_case(trimmed(line.substr(1, equals - 1)));
      const auto value = trimmed(line.substr(equals + 1));
      if (key != "SYNTAX" && key != "CHECK" && key != "ESCAPE") {
        std::tie(at_, line_) = before;
        return {};
      }
      if (key != "ESCAPE") continue;
      if (value != "\\" && value != "`") return wrong(line_, "escape: must be \\ or `");
      file_.escape = value[0];
    }
    return {};
  }

  /// Returns whether the line continues on the next one, and removes the escape character.
  bool continues(std::string_view& line) const {
    std::string_view left = line;
    while (!left.empty() && (left.back() == ' ' || left.back() == '\t')) left.remove_suffix(1);
    if (left.empty() || left.back() != file_.escape) return false;
    if (left.size() > 1 && left[left.size() - 2] == file_.escape) return false;
    line = left.substr(0, left.size() - 1);
    return true;
  }

  std::string join(std::string_view line) {
    std::string joined;
    bool more = continues(line);
    joined += line;
    while (more) {
      auto next = next_line();
      if (!next) break;
      const auto begin = left_trimmed(*next);
      if (begin.empty() || begin.front() == '#') continue;  // in the middle: ignored by BuildKit
      line = *next;
      more = continues(line);
      joined += line;
    }
    return joined;
  }

  Result<void> add(std::string joined, unsigned number) {
    Instruction one;
    one.line = number;
    std::string_view left = trimmed(joined);
    const auto end = std::min(left.find_first_of(" \t"), left.size());
    one.name = upper_case(left.substr(0, end));
    const Form* const form = form_of(one.name);
    if (form == nullptr) return unknown(one);
    left = left_trimmed(left.substr(end));
    SPC_TRY(take_flags(one, *form, left));
    one.text = trimmed(left);
    if (one.text.empty()) return wrong(number, formatted("{} needs a value", one.name));
    if (form->takes_list && one.text.front() == '[') read_list(one);
    if (form->takes_documents && !one.is_list) SPC_TRY(take_documents(one));
    file_.instructions.push_back(std::move(one));
    return {};
  }

  Error unknown(const Instruction& one) const {
    std::vector<std::string_view> names;
    for (const Form& form : kForms) names.push_back(form.name);
    Error error = wrong(one.line, formatted("unknown instruction {}", in_quotes(one.name)));
    const std::string near(nearest(one.name, names));
    return std::move(error).hint(
        near.empty() ? "a command belongs after RUN; a long line ends in a backslash"
                     : "did you mean " + near + "?");
  }

  Result<void> take_flags(Instruction& one, const Form& form, std::string_view& left) const {
    while (left.starts_with("--")) {
      const auto end = std::min(left.find_first_of(" \t"), left.size());
      const auto word = left.substr(2, end - 2);
      if (word.empty()) break;
      const auto equals = std::min(word.find('='), word.size());
      const std::string flag(word.substr(0, equals));
      if (std::find(form.flags.begin(), form.flags.end(), flag) == form.flags.end()) {
        const std::string near(nearest(flag, form.flags));
        return wrong(one.line, formatted("{} has no flag --{}", one.name, flag))
            .hint(near.empty() ? "" : formatted("did you mean --{}?", near));
      }
      one.flags.emplace_back(flag, equals == word.size() ? "true" : word.substr(equals + 1));
      left = left_trimmed(left.substr(end));
    }
    return {};
  }

  /// Reads the JSON form. Any other text is the shell form, as with BuildKit.
  static void read_list(Instruction& one) {
    const auto parsed = Json::parse(one.text);
    if (!parsed || !parsed->is_array()) return;
    for (const Json& word : parsed->elements()) {
      if (!word.is_text()) {
        one.list.clear();
        return;
      }
      one.list.push_back(word.as_text());
    }
    one.is_list = true;
  }

  /// Finds `<<NAME`, `<<-NAME` and `<<"NAME"` in the instruction and reads the documents after it.
  Result<void> take_documents(Instruction& one) {
    struct Marker {
      HereDocument document;
      bool strips = false;
    };
    std::vector<Marker> markers;
    char quote = 0;
    for (std::size_t at = 0; at < one.text.size(); ++at) {
      const char c = one.text[at];
      if (c == file_.escape && quote != '\'') {
        ++at;
      } else if (quote != 0) {
        quote = c == quote ? 0 : quote;
      } else if (c == '\'' || c == '"') {
        quote = c;
      } else if (std::string_view(one.text).substr(at).starts_with("<<")) {
        Marker marker;
        const auto next = read_marker(one.text, at, marker.document, marker.strips);
        if (!marker.document.name.empty()) markers.push_back(std::move(marker));
        at = next - 1;
      }
    }
    for (Marker& marker : markers) {
      SPC_TRY(read_document(marker.document, marker.strips, one.line));
      one.documents.push_back(std::move(marker.document));
    }
    return {};
  }

  /// Returns the place after the marker at `at`. `document.name` stays empty if it is none: `<<<`.
  static std::size_t read_marker(const std::string& text, std::size_t at, HereDocument& document,
                                 bool& strips) {
    std::size_t next = at + 2;
    if (next < text.size() && text[next] == '<') {
      while (next < text.size() && text[next] == '<') ++next;
      return next;
    }
    if (next < text.size() && text[next] == '-') {
      strips = true;
      ++next;
    }
    const char quote =
        next < text.size() && (text[next] == '"' || text[next] == '\'') ? text[next] : '\0';
    if (quote != 0) ++next;
    const auto begin = next;
    while (next < text.size() && (continues_name(text[next]) || text[next] == '.' ||
                                  text[next] == '-' || text[next] == '/'))
      ++next;
    document.name = text.substr(begin, next - begin);
    document.expands = quote == 0;
    if (quote != 0 && next < text.size() && text[next] == quote) ++next;
    return next;
  }

  Result<void> read_document(HereDocument& document, bool strips, unsigned line) {
    while (auto next = next_line()) {
      std::string_view content = *next;
      if (strips) content.remove_prefix(std::min(content.find_first_not_of('\t'), content.size()));
      if (content == document.name) return {};
      document.text.append(content) += '\n';
    }
    return wrong(line, formatted("here-document {} has no end", in_quotes(document.name)));
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  unsigned line_ = 0;
  Dockerfile file_;
};

}  // namespace

std::string Instruction::flag(std::string_view wanted) const {
  std::string value;
  for (const auto& [key, given] : flags) {
    if (key == wanted) value = given;
  }
  return value;
}

Result<Dockerfile> parse_dockerfile(std::string_view text, const std::string& name) {
  if (text.find('\0') != std::string_view::npos)
    return Error(ErrorKind::invalid, formatted("{}: is not a text file", name));
  return Reader(text, name).read();
}

namespace {

/// Splits at blanks outside of quotes. Quotes and escapes stay.
std::vector<std::string> raw_words(std::string_view text, char escape) {
  std::vector<std::string> words;
  std::string word;
  char quote = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quote == 0 && is_blank(c)) {
      if (!word.empty()) words.push_back(std::exchange(word, {}));
      continue;
    }
    word += c;
    if (c == escape && quote != '\'' && at + 1 < text.size()) {
      word += text[++at];
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

}  // namespace

Result<std::vector<Assignment>> parse_assignments(const Instruction& one, char escape) {
  const auto words = raw_words(one.text, escape);
  std::vector<Assignment> pairs;
  if (one.name != "ARG" && !words.empty() && words[0].find('=') == std::string::npos) {
    const std::string_view left = left_trimmed(std::string_view(one.text).substr(words[0].size()));
    if (left.empty())
      return Error(ErrorKind::invalid, formatted("{} {}: has no value", one.name, words[0]))
          .hint(formatted("write {} {}=VALUE", one.name, words[0]));
    pairs.push_back({words[0], std::string(left)});
    return pairs;
  }
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    if (equals == 0 || (equals == std::string::npos && one.name != "ARG"))
      return Error(ErrorKind::invalid,
                   formatted("{}: {} is not NAME=VALUE", one.name, in_quotes(word)))
          .hint("put a value with blanks in double quotes");
    pairs.push_back({word.substr(0, equals),
                     equals == std::string::npos ? "" : word.substr(equals + 1),
                     equals != std::string::npos});
  }
  return pairs;
}

// --- .dockerignore ---

namespace {

std::string cleaned(std::string_view path) {
  std::string result;
  while (!path.empty()) {
    const auto end = std::min(path.find('/'), path.size());
    const auto part = path.substr(0, end);
    if (!part.empty() && part != ".") result.append(result.empty() ? "" : "/").append(part);
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return result;
}

/// Matches whole paths, component by component.
bool matches_components(std::string_view pattern, std::string_view path) {
  if (pattern.empty()) return path.empty();
  const auto end = std::min(pattern.find('/'), pattern.size());
  const auto rest = pattern.substr(std::min(end + 1, pattern.size()));
  if (pattern.substr(0, end) == "**") {
    if (rest.empty()) return true;
    for (std::string_view left = path;;) {
      if (matches_components(rest, left)) return true;
      const auto slash = left.find('/');
      if (slash == std::string_view::npos) return false;
      left.remove_prefix(slash + 1);
    }
  }
  const auto slash = std::min(path.find('/'), path.size());
  if (path.empty() || !matches(pattern.substr(0, end), path.substr(0, slash), false)) return false;
  if (slash == path.size()) return rest.empty() || rest == "**";
  return !rest.empty() && matches_components(rest, path.substr(slash + 1));
}

}  // namespace

bool matches_path(std::string_view pattern, std::string_view path) {
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = path.find('/', end == 0 ? 0 : end + 1);
    if (matches_components(pattern, path.substr(0, end))) return true;
  }
  return false;
}

IgnoreFile IgnoreFile::parse(std::string_view text) {
  IgnoreFile file;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    auto line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    Pattern pattern{.text = {}, .brings_back = line.front() == '!'};
    if (pattern.brings_back) line = trimmed(line.substr(1));
    pattern.text = cleaned(line);
    if (pattern.text.empty()) continue;
    file.has_exceptions_ = file.has_exceptions_ || pattern.brings_back;
    file.patterns_.push_back(std::move(pattern));
  }
  return file;
}

bool IgnoreFile::matches(std::string_view path) const {
  bool ignored = false;
  for (const Pattern& pattern : patterns_) {
    if (pattern.brings_back == ignored && matches_path(pattern.text, path))
      ignored = !pattern.brings_back;
  }
  return ignored;
}

}  // namespace spc
