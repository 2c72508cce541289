#include "base/json.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/format.hpp"

namespace spc {

// --- json ---

Json::Json() noexcept = default;
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;
Json::Json(Value value) noexcept : value_(std::move(value)) {}
Json::Json(Scalar value) noexcept {
  std::visit([this](auto& scalar) { value_ = std::move(scalar); }, value);
}
Json::Json(std::initializer_list<Member> members) : value_(Object(members)) {}
Json Json::array(Array elements) { return Json(Value(std::move(elements))); }
Json Json::object(Object members) { return Json(Value(std::move(members))); }
Json Json::object() { return object({}); }
Json::Json(const std::vector<std::string>& texts) : value_(Array(texts.begin(), texts.end())) {}
Json::Json(const std::set<std::string>& texts) : value_(Array(texts.begin(), texts.end())) {}
Json::Json(const std::map<std::string, std::string>& texts) : value_(Object()) {
  for (const auto& [key, text] : texts) std::get<Object>(value_).push_back({key, text});
}

bool operator==(const Json& one, const Json& other) {
  if (!one.is_object() || !other.is_object()) return one.value_ == other.value_;
  const auto is_in_other = [&](const Json::Member& member) {
    return std::find(other.members().begin(), other.members().end(), member) !=
           other.members().end();
  };
  return one.size() == other.size() &&
         std::all_of(one.members().begin(), one.members().end(), is_in_other);
}

bool Json::as_boolean() const noexcept {
  const bool* value = std::get_if<bool>(&value_);
  return value != nullptr && *value;
}

std::uint64_t Json::as_number() const noexcept {
  const auto* value = std::get_if<std::uint64_t>(&value_);
  return value != nullptr ? *value : 0;
}

const std::string& Json::as_text() const noexcept {
  static const std::string kNone;
  const auto* value = std::get_if<std::string>(&value_);
  return value != nullptr ? *value : kNone;
}

const Json::Array& Json::elements() const noexcept {
  static const Array kNone;
  const auto* value = std::get_if<Array>(&value_);
  return value != nullptr ? *value : kNone;
}

const Json::Object& Json::members() const noexcept {
  static const Object kNone;
  const auto* value = std::get_if<Object>(&value_);
  return value != nullptr ? *value : kNone;
}

std::size_t Json::size() const noexcept { return elements().size() + members().size(); }

const Json* Json::find(std::string_view key) const noexcept {
  for (const Member& member : members()) {
    if (member.key == key) return member.value.is_null() ? nullptr : &member.value;
  }
  return nullptr;
}

namespace {

Error wrong_type(std::string_view key, const char* wanted) {
  return Error(ErrorKind::corrupt, formatted("\"{}\" is not {}", key, wanted));
}

}  // namespace

Result<std::optional<std::string>> Json::text(std::string_view key) const {
  const Json* member = find(key);
  if (member == nullptr) return std::optional<std::string>();
  if (!member->is_text()) return wrong_type(key, "a string");
  if (member->as_text().find('\0') == std::string::npos)
    return std::optional<std::string>(member->as_text());
  return Error(ErrorKind::corrupt, formatted("\"{}\" contains a NUL character", key));
}

Result<std::optional<std::uint64_t>> Json::number(std::string_view key) const {
  const Json* member = find(key);
  if (member == nullptr) return std::optional<std::uint64_t>();
  if (!member->is_number()) return wrong_type(key, "a number from 0 to 2^64-1");
  return std::optional<std::uint64_t>(member->as_number());
}

Result<const Json::Array*> Json::list(std::string_view key) const {
  static const Array kNone;
  const Json* member = find(key);
  if (member == nullptr) return &kNone;
  if (!member->is_array()) return wrong_type(key, "an array");
  return &member->elements();
}

Json& Json::operator[](std::string_view key) {
  if (!is_object()) value_ = Object();
  auto& members = std::get<Object>(value_);
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const Member& member) { return member.key == key; });
  if (found != members.end()) return found->value;
  members.push_back({std::string(key), Json()});
  return members.back().value;
}

void Json::push_back(Json element) {
  if (!is_array()) value_ = Array();
  std::get<Array>(value_).push_back(std::move(element));
}

void Json::erase(std::string_view key) {
  if (auto* members = std::get_if<Object>(&value_)) {
    std::erase_if(*members, [&](const Member& member) { return member.key == key; });
  }
}

/// Builds the document while it is read, and keeps the first reason to refuse it.
class Json::Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& text) override { return add(Json(Value(std::move(text)))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(object()); }
  bool start_array(std::size_t) override { return open(array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!open_.back().keys.insert(name).second)
      return refuse(formatted("key {} is given twice", in_quotes(name)));
    open_.back().key = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return refuse(formatted("is not JSON (at byte {})", position));
  }

  [[nodiscard]] const std::string& reason() const { return reason_; }
  Json take() { return std::move(document_); }

 private:
  /// An object or array whose end has not been read yet.
  struct Open {
    Json value;
    std::string key;             // of the next member
    std::set<std::string> keys;  // all keys of the object so far
  };

  bool refuse(std::string why) {
    if (reason_.empty()) reason_ = std::move(why);
    return false;
  }
  bool count() {
    return ++values_ <= limits_.values ||
           refuse(formatted("has more than {} values", limits_.values));
  }
  bool add(Json value) {
    if (!count()) return false;
    put(std::move(value));
    return true;
  }
  bool open(Json value) {
    open_.push_back({std::move(value), {}, {}});
    if (!count()) return false;
    return open_.size() <= limits_.depth ||
           refuse(formatted("is nested more than {} levels deep", limits_.depth));
  }
  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    put(std::move(value));
    return true;
  }
  void put(Json value) {
    if (open_.empty()) {
      document_ = std::move(value);
    } else if (Open& into = open_.back(); into.value.is_array()) {
      std::get<Array>(into.value.value_).push_back(std::move(value));
    } else {
      std::get<Object>(into.value.value_).push_back({std::move(into.key), std::move(value)});
    }
  }

  const JsonLimits& limits_;
  Json document_;
  std::vector<Open> open_;
  std::size_t values_ = 0;
  std::string reason_;
};

Result<Json> Json::parse(std::string_view text, const JsonLimits& limits) {
  const auto refuse = [&](std::string why) { return Error(limits.kind, std::move(why)); };
  if (text.size() > limits.bytes) return refuse(formatted("is larger than {} bytes", limits.bytes));
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return refuse("is empty");
  try {
    Builder builder(limits);
    // json::sax_parse() would link readers of five binary formats into slurmstepd.
    auto input = nlohmann::detail::input_adapter(text);
    nlohmann::detail::parser<nlohmann::json, decltype(input)> parser(std::move(input));
    if (!parser.sax_parse(&builder)) return refuse(builder.reason());
    return builder.take();
  } catch (const std::exception& error) {
    return refuse(printable(error.what()));
  }
}

/// Writes a value as text.
class JsonWriter {
 public:
  JsonWriter(unsigned indent, char fill, Json::Order order)
      : indent_(indent), fill_(fill), order_(order) {}

  void write(const Json& value, std::size_t depth = 0) {
    if (value.is_object()) {
      write_object(value.members(), depth);
    } else if (value.is_array()) {
      write_list('[', value.elements(), ']', depth,
                 [&](const Json& element) { write(element, depth + 1); });
    } else {
      write_scalar(value);
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void write_object(const Json::Object& members, std::size_t depth) {
    std::vector<const Json::Member*> ordered;
    for (const Json::Member& member : members) ordered.push_back(&member);
    if (order_ == Json::Order::sorted) {
      std::stable_sort(ordered.begin(), ordered.end(),
                       [](const auto* one, const auto* other) { return one->key < other->key; });
    }
    write_list('{', ordered, '}', depth, [&](const Json::Member* member) {
      write_scalar(member->key);
      out_ += indent_ != 0 ? ": " : ":";
      write(member->value, depth + 1);
    });
  }

  template <typename List, typename Write>
  void write_list(char begin, const List& list, char end, std::size_t depth,
                  const Write& write_one) {
    out_ += begin;
    bool first = true;
    for (const auto& one : list) {
      if (!std::exchange(first, false)) out_ += ',';
      new_line(depth + 1);
      write_one(one);
    }
    if (!list.empty()) new_line(depth);
    out_ += end;
  }

  void new_line(std::size_t depth) {
    if (indent_ == 0) return;
    out_ += '\n';
    out_.append(depth * indent_, fill_);
  }

  void write_scalar(const Json& value) {
    const nlohmann::json scalar = std::visit(ToScalar(), value.value_);
    out_ += scalar.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  /// Writes scalars with the library.
  struct ToScalar {
    nlohmann::json operator()(std::monostate) const { return nullptr; }
    nlohmann::json operator()(const Json::Array&) const { return nullptr; }
    nlohmann::json operator()(const Json::Object&) const { return nullptr; }
    template <typename Scalar>
    nlohmann::json operator()(const Scalar& value) const {
      return value;
    }
  };

  unsigned indent_;
  char fill_;
  Json::Order order_;
  std::string out_;
};

std::string Json::str(unsigned indent, char fill, Order order) const {
  JsonWriter writer(indent, fill, order);
  writer.write(*this);
  return writer.take();
}

// --- json object ---

namespace {

Error invalid(std::string why) { return Error(ErrorKind::invalid, std::move(why)); }

bool has_nul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

}  // namespace

std::string path_problem(std::string_view path) {
  if (!path.starts_with('/')) return in_quotes(path) + " is not an absolute path";
  if (has_nul(path)) return "has a NUL character";
  for (std::string_view rest = path; !rest.empty();) {
    rest.remove_prefix(1);
    const std::string_view name = rest.substr(0, rest.find('/'));
    if (name == "..") return in_quotes(path) + " has a part \"..\"";
    rest.remove_prefix(name.size());
  }
  return "";
}

Result<Json> JsonObject::parse(std::string_view text) {
  Json document = SPC_TRY(Json::parse(text, {.kind = ErrorKind::invalid}));
  if (!document.is_object()) return invalid("is not a JSON object");
  return document;
}

Result<JsonObject> JsonObject::of(const Json& value, std::string where) {
  if (!value.is_object()) return invalid((where.empty() ? "it" : where) + ": is not an object");
  return JsonObject(value, std::move(where));
}

std::string JsonObject::name_of(std::string_view key) const {
  return (where_.empty() ? "" : where_ + ".") + printable(key.substr(0, 100));
}

Error JsonObject::problem(std::string_view key, std::string_view why) const {
  return invalid(formatted("{}: {}", name_of(key), why));
}

const Json* JsonObject::take_any(const char* key) {
  taken_.insert(key);
  return object_->find(key);
}

Result<void> JsonObject::take(const char* key, bool& into) {
  const Json* member = take_any(key);
  if (member == nullptr) return {};
  if (!member->is_boolean()) return problem(key, "is not true or false");
  into = member->as_boolean();
  return {};
}

Result<void> JsonObject::take(const char* key, std::string& into) {
  const Json* member = take_any(key);
  if (member == nullptr) return {};
  if (!member->is_text()) return problem(key, "is not a string");
  into = member->as_text();
  if (has_nul(into)) return problem(key, "has a NUL character");
  return {};
}

Result<void> JsonObject::take(const char* key, std::uint64_t& into) {
  const Json* member = take_any(key);
  if (member == nullptr) return {};
  if (!member->is_number()) return problem(key, "is not a number from 0 to 2^64-1");
  into = member->as_number();
  return {};
}

Result<void> JsonObject::take(const char* key, std::vector<std::string>& into) {
  const Json* member = take_any(key);
  if (member == nullptr) return {};
  if (!member->is_array()) return problem(key, "is not an array of strings");
  into.clear();
  for (const Json& element : member->elements()) {
    if (!element.is_text()) return problem(key, "is not an array of strings");
    into.push_back(element.as_text());
    if (has_nul(into.back())) return problem(key, "has a NUL character");
  }
  return {};
}

Result<void> JsonObject::take(const char* key, std::set<std::string>& into) {
  std::vector<std::string> list;
  if (!has(key)) return take(key, list);
  SPC_TRY(take(key, list));
  into = std::set<std::string>(list.begin(), list.end());
  return {};
}

Result<void> JsonObject::take(const char* key, std::map<std::string, std::string>& into) {
  const Json* member = take_any(key);
  if (member == nullptr) return {};
  if (!member->is_object()) return problem(key, "is not an object");
  into.clear();
  for (const auto& [name, value] : member->members()) {
    if (!value.is_text()) return problem(std::string(key) + "." + name, "is not a string");
    if (has_nul(value.as_text()) || has_nul(name)) return problem(key, "has a NUL character");
    into[name] = value.as_text();
  }
  return {};
}

Result<void> JsonObject::take_path(const char* key, std::string& into) {
  if (!has(key)) return take(key, into);
  SPC_TRY(take(key, into));
  const std::string why = path_problem(into);
  return why.empty() ? Result<void>() : problem(key, why);
}

Result<void> JsonObject::take_paths(const char* key, std::vector<std::string>& into) {
  SPC_TRY(take(key, into));
  for (const std::string& path : into) {
    if (const std::string why = path_problem(path); !why.empty()) return problem(key, why);
  }
  return {};
}

Result<void> JsonObject::nothing_left() const {
  for (const auto& [key, value] : object_->members()) {
    if (!taken_.contains(key)) return problem(key, "is unknown");
  }
  return {};
}

}  // namespace spc
