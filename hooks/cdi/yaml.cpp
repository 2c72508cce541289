#include <yaml.h>

#include <charconv>
#include <new>
#include <set>
#include <string>

#include "base/format.hpp"
#include "hooks/cdi/document.hpp"

namespace spc {
namespace {

std::string_view text_of(const yaml_event_t& event) {
  return {reinterpret_cast<const char*>(event.data.scalar.value), event.data.scalar.length};
}

/// Whole numbers and null as Go's reader takes them in these files (0x, 0o and a leading 0, too);
/// everything else is text.
Json plain_value(std::string_view text) {
  if (text.empty() || text == "null" || text == "~" || text == "Null" || text == "NULL") return {};
  const bool negative = text.starts_with('-');
  std::string_view digits = text.substr(negative || text.starts_with('+') ? 1 : 0);
  int base = 10;
  if (digits.starts_with("0x") || digits.starts_with("0o")) {
    base = digits[1] == 'x' ? 16 : 8;
    digits.remove_prefix(2);
  } else if (digits.size() > 1 && digits[0] == '0') {
    base = 8;
  }
  std::int64_t number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  const bool is_number = !digits.empty() && digits[0] != '-' && error == std::errc() &&
                         end == digits.data() + digits.size();
  return is_number ? Json(negative ? -number : number) : Json(text);
}

struct Event : yaml_event_t {
  Event() : yaml_event_t{} {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { yaml_event_delete(this); }

  [[nodiscard]] bool is_over_lines() const { return start_mark.line != end_mark.line; }
};

/// Builds the tree from libyaml's events, and counts what it builds.
class YamlReader {
 public:
  explicit YamlReader(std::string_view text) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;
  ~YamlReader() { yaml_parser_delete(&parser_); }

  Result<Json> document() {
    Event event;
    SPC_TRY(next(event));  // the stream begins
    Event begin;
    SPC_TRY(next(begin));
    if (begin.type == YAML_STREAM_END_EVENT) return Error(ErrorKind::corrupt, "is empty");
    const auto& start = begin.data.document_start;
    if (start.version_directive != nullptr ||
        start.tag_directives.start != start.tag_directives.end) {
      return unsupported(begin, "a directive");
    }
    Event root;
    SPC_TRY(next(root));
    Json tree = SPC_TRY(value(root, 1));
    Event end;
    SPC_TRY(next(end));
    Event after;
    SPC_TRY(next(after));
    if (after.type != YAML_STREAM_END_EVENT) return unsupported(after, "more than one document");
    return tree;
  }

 private:
  static Error at(const yaml_mark_t& mark, const std::string& why) {
    return Error(ErrorKind::corrupt, formatted("line {}: {}", mark.line + 1, why));
  }
  static Error unsupported(const Event& event, const std::string& what) {
    return at(event.start_mark, "unsupported YAML: " + what);
  }

  Result<void> next(Event& event) {
    if (yaml_parser_parse(&parser_, &event) != 0) return {};
    std::string why = parser_.problem != nullptr ? parser_.problem : "no memory";
    if (parser_.context != nullptr) why += formatted(" ({})", parser_.context);
    if (parser_.error == YAML_READER_ERROR) {
      return Error(ErrorKind::corrupt, formatted("byte {}: {}", parser_.problem_offset, why));
    }
    return at(parser_.problem_mark, why);
  }

  Result<Json> value(const Event& event, std::size_t depth) {
    if (++values_ > kCdiLimits.values) {
      return at(event.start_mark, formatted("more than {} values", kCdiLimits.values));
    }
    switch (event.type) {
      case YAML_SCALAR_EVENT: return scalar(event);
      case YAML_SEQUENCE_START_EVENT: return sequence(event, depth);
      case YAML_MAPPING_START_EVENT: return map(event, depth);
      default: return unsupported(event, "an alias");
    }
  }

  static Result<void> check_properties(const Event& event, const yaml_char_t* anchor,
                                       const yaml_char_t* tag) {
    if (anchor != nullptr) return unsupported(event, "an anchor");
    return tag != nullptr ? Result<void>(unsupported(event, "a tag")) : Result<void>();
  }

  static Result<Json> scalar(const Event& event) {
    const auto& scalar = event.data.scalar;
    SPC_TRY(check_properties(event, scalar.anchor, scalar.tag));
    const bool is_block =
        scalar.style == YAML_LITERAL_SCALAR_STYLE || scalar.style == YAML_FOLDED_SCALAR_STYLE;
    if (is_block || event.is_over_lines()) return unsupported(event, "a multi-line string");
    return scalar.style == YAML_PLAIN_SCALAR_STYLE ? plain_value(text_of(event))
                                                   : Json(text_of(event));
  }

  static Result<void> check_depth(const Event& event, std::size_t depth) {
    if (depth <= kCdiLimits.depth) return {};
    return at(event.start_mark, formatted("is nested more than {} levels deep", kCdiLimits.depth));
  }

  Result<Json> sequence(const Event& begin, std::size_t depth) {
    const auto& start = begin.data.sequence_start;
    SPC_TRY(check_properties(begin, start.anchor, start.tag));
    SPC_TRY(check_depth(begin, depth));
    Json::Array items;
    for (;;) {
      Event event;
      SPC_TRY(next(event));
      if (event.type == YAML_SEQUENCE_END_EVENT) return Json::array(std::move(items));
      if (start.style == YAML_FLOW_SEQUENCE_STYLE) return unsupported(begin, "a flow collection");
      items.push_back(SPC_TRY(value(event, depth + 1)));
    }
  }

  Result<Json> map(const Event& begin, std::size_t depth) {
    const auto& start = begin.data.mapping_start;
    SPC_TRY(check_properties(begin, start.anchor, start.tag));
    SPC_TRY(check_depth(begin, depth));
    std::set<std::string> keys;
    Json::Object members;
    for (;;) {
      Event event;
      SPC_TRY(next(event));
      if (event.type == YAML_MAPPING_END_EVENT) return Json::object(std::move(members));
      if (start.style == YAML_FLOW_MAPPING_STYLE) return unsupported(begin, "a flow collection");
      if (event.type == YAML_ALIAS_EVENT) return unsupported(event, "an alias");
      if (event.type != YAML_SCALAR_EVENT) return unsupported(event, "a key that is not a string");
      SPC_TRY(scalar(event));
      std::string key(text_of(event));
      if (!keys.insert(key).second)
        return at(event.start_mark, formatted("key {} is given twice", in_quotes(key)));
      Event member;
      SPC_TRY(next(member));
      Json given = SPC_TRY(value(member, depth + 1));
      members.push_back({std::move(key), std::move(given)});
    }
  }

  yaml_parser_t parser_{};
  std::size_t values_ = 0;
};

}  // namespace

Result<Json> parse_cdi_yaml(std::string_view text) { return YamlReader(text).document(); }

}  // namespace spc
