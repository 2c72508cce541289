#include "base/json/json_object.hpp"

#include "base/format.hpp"

namespace spc {
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
