#include "hooks/json/strict.hpp"

#include <algorithm>

namespace spc {
namespace {

using Json = StrictObject::Json;

constexpr std::size_t kMostLevels = 32;

/// Looks over a document before it is built, and remembers the first reason to refuse it.
class Inspector final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    reason_ = "key " + in_quotes(name) + " is given twice";
    return false;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (reason_.empty()) reason_ = "is not JSON (at byte " + std::to_string(position) + ")";
    return false;
  }
  const std::string& reason() const { return reason_; }

 private:
  bool open() {
    keys_.emplace_back();
    if (keys_.size() <= kMostLevels) return true;
    reason_ = "is nested more than " + std::to_string(kMostLevels) + " levels deep";
    return false;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> keys_;  // of the objects and arrays that are open
  std::string reason_;
};

Error invalid(std::string why) { return Error(ErrorKind::invalid, std::move(why)); }

bool has_nul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

}  // namespace

std::string problem_of_path(std::string_view path) {
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

Result<Json> StrictObject::parse(std::string_view text) {
  try {
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return invalid("is empty");
    Inspector inspector;
    if (!Json::sax_parse(text, &inspector)) return invalid(inspector.reason());
    Json document = Json::parse(text, nullptr, false);
    if (!document.is_object()) return invalid("is not a JSON object");
    return document;
  } catch (const nlohmann::detail::exception& error) {
    return invalid(printable(error.what()));
  }
}

Result<StrictObject> StrictObject::of(const Json& value, std::string where) {
  if (!value.is_object()) return invalid((where.empty() ? "it" : where) + ": is not an object");
  return StrictObject(value, std::move(where));
}

std::string StrictObject::name_of(std::string_view key) const {
  return (where_.empty() ? "" : where_ + ".") + printable(key.substr(0, 100));
}

Error StrictObject::problem(std::string_view key, std::string_view why) const {
  return invalid(name_of(key) + ": " + std::string(why));
}

bool StrictObject::has(const char* key) const {
  const auto found = object_->find(key);
  return found != object_->end() && !found->is_null();
}

const Json* StrictObject::take_any(const char* key) {
  taken_.insert(key);
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

Result<void> StrictObject::take(const char* key, bool& into) {
  const Json* member = take_any(key);
  if (member == nullptr) return {};
  if (!member->is_boolean()) return problem(key, "is not true or false");
  into = member->get<bool>();
  return {};
}

Result<void> StrictObject::take(const char* key, std::string& into) {
  const Json* member = take_any(key);
  if (member == nullptr) return {};
  if (!member->is_string()) return problem(key, "is not a string");
  into = member->get_ref<const std::string&>();
  if (has_nul(into)) return problem(key, "has a NUL character");
  return {};
}

Result<void> StrictObject::take(const char* key, std::uint64_t& into) {
  const Json* member = take_any(key);
  if (member == nullptr) return {};
  if (!member->is_number_unsigned()) return problem(key, "is not a number from 0 to 2^64-1");
  into = member->get<std::uint64_t>();
  return {};
}

Result<void> StrictObject::take(const char* key, std::vector<std::string>& into) {
  const Json* member = take_any(key);
  if (member == nullptr) return {};
  if (!member->is_array()) return problem(key, "is not an array of strings");
  into.clear();
  for (const Json& element : *member) {
    if (!element.is_string()) return problem(key, "is not an array of strings");
    into.push_back(element.get_ref<const std::string&>());
    if (has_nul(into.back())) return problem(key, "has a NUL character");
  }
  return {};
}

Result<void> StrictObject::take(const char* key, std::set<std::string>& into) {
  std::vector<std::string> list;
  if (!has(key)) return take(key, list);
  SPC_TRY(take(key, list));
  into = std::set<std::string>(list.begin(), list.end());
  return {};
}

Result<void> StrictObject::take(const char* key, std::map<std::string, std::string>& into) {
  const Json* member = take_any(key);
  if (member == nullptr) return {};
  if (!member->is_object()) return problem(key, "is not an object");
  into.clear();
  for (const auto& [name, value] : member->items()) {
    if (!value.is_string()) return problem(std::string(key) + "." + name, "is not a string");
    const auto& text = value.get_ref<const std::string&>();
    if (has_nul(text) || has_nul(name)) return problem(key, "has a NUL character");
    into[name] = text;
  }
  return {};
}

Result<void> StrictObject::take_path(const char* key, std::string& into) {
  if (!has(key)) return take(key, into);
  SPC_TRY(take(key, into));
  const std::string why = problem_of_path(into);
  return why.empty() ? Result<void>() : problem(key, why);
}

Result<void> StrictObject::take_paths(const char* key, std::vector<std::string>& into) {
  SPC_TRY(take(key, into));
  for (const std::string& path : into) {
    if (const std::string why = problem_of_path(path); !why.empty()) return problem(key, why);
  }
  return {};
}

Result<void> StrictObject::nothing_left() const {
  for (const auto& [key, value] : object_->items()) {
    if (!taken_.contains(key)) return problem(key, "is unknown");
  }
  return {};
}

}  // namespace spc
