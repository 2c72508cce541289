#include "image/registry/json.hpp"

#include <set>
#include <vector>

namespace spc {
namespace {


constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxValues = 200'000;

/// Looks over a document without building it, and remembers the first reason to refuse it.
class Inspector final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return count() && shallow();
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    keys_.emplace_back();
    return count() && shallow();
  }
  bool end_array() override {
    keys_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    return refuse("key " + in_quotes(name) + " is given twice");
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("is not JSON (at byte " + std::to_string(position) + ")");
  }

  const std::string& reason() const { return reason_; }

 private:
  bool refuse(std::string why) {
    if (reason_.empty()) reason_ = std::move(why);
    return false;
  }
  bool count() { return ++values_ <= kMaxValues || refuse("has more than 200000 values"); }
  bool shallow() { return keys_.size() <= kMaxDepth || refuse("is nested more than 32 levels deep"); }

  std::vector<std::set<std::string>> keys_;  // of the containers that are open
  std::size_t values_ = 0;
  std::string reason_;
};

Error wrong_type(const char* key, const char* wanted) {
  return Error(ErrorKind::corrupt, "\"" + std::string(key) + "\" is not " + wanted);
}

}  // namespace

Result<Json> parse_json_object(std::string_view text, std::string_view what) {
  const auto refuse = [&](const std::string& why) { return Error(ErrorKind::corrupt, std::string(what) + ": " + why); };
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return refuse("is empty");
  if (text[first] == '<') {
    return refuse("is an HTML page, not JSON").hint("a proxy or a login page answers instead of the registry");
  }
  if (text[first] != '{') return refuse("is not a JSON object");
  try {
    Inspector inspector;
    if (!Json::sax_parse(text, &inspector)) return refuse(inspector.reason());
    Json document = Json::parse(text, nullptr, false);
    if (document.is_discarded()) return refuse("is not JSON");
    return document;
  } catch (const std::exception& error) {
    return refuse(printable(error.what()));
  }
}

const Json* find_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Result<std::optional<std::string>> text_member(const Json& object, const char* key) {
  const Json* member = find_member(object, key);
  if (member == nullptr) return std::optional<std::string>();
  if (!member->is_string()) return wrong_type(key, "text");
  const auto& text = member->get_ref<const std::string&>();
  if (text.find('\0') != std::string::npos) {
    return Error(ErrorKind::corrupt, "\"" + std::string(key) + "\" contains a NUL character");
  }
  return std::optional<std::string>(text);
}

Result<std::optional<std::uint64_t>> number_member(const Json& object, const char* key) {
  const Json* member = find_member(object, key);
  if (member == nullptr) return std::optional<std::uint64_t>();
  if (!member->is_number_unsigned()) return wrong_type(key, "a number from 0 to 2^64-1");
  return std::optional<std::uint64_t>(member->get<std::uint64_t>());
}

Result<const Json::array_t*> array_member(const Json& object, const char* key) {
  static const Json::array_t kEmpty;
  const Json* member = find_member(object, key);
  if (member == nullptr) return &kEmpty;
  if (!member->is_array()) return wrong_type(key, "an array");
  return member->get_ptr<const Json::array_t*>();
}

}  // namespace spc
