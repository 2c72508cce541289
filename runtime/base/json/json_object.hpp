#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.hpp"
#include "base/result.hpp"

namespace spc {

/// An object of a document written by people or by site programs. Each member is taken by key and
/// type; members that nobody took are refused at the end, so a mistyped key is never ignored.
/// Errors are ErrorKind::invalid and name the member with its path: `mounts[1].target: is not an
/// absolute path`. An absent or null member leaves the target unchanged. The value must outlive it.
class JsonObject {
 public:
  /// Parses a whole document, which must be an object.
  static Result<Json> parse(std::string_view text);

  /// `where`: prefix of keys in errors; empty for the document itself. An error if `value` is not
  /// an object.
  static Result<JsonObject> of(const Json& value, std::string where = "");

  Result<void> take(const char* key, bool& into);
  Result<void> take(const char* key, std::string& into);
  Result<void> take(const char* key, std::uint64_t& into);
  Result<void> take(const char* key, std::vector<std::string>& into);
  Result<void> take(const char* key, std::set<std::string>& into);
  Result<void> take(const char* key, std::map<std::string, std::string>& into);
  /// An absolute path without `..`.
  Result<void> take_path(const char* key, std::string& into);
  Result<void> take_paths(const char* key, std::vector<std::string>& into);

  /// The member, for special formats; nullptr if it is missing.
  const Json* take_any(const char* key);
  /// Calls `read` with each object of an array.
  template <typename Read>
  Result<void> take_each(const char* key, const Read& read) {
    const Json* list = take_any(key);
    if (list == nullptr) return {};
    if (!list->is_array()) return problem(key, "is not an array");
    for (std::size_t i = 0; i < list->size(); ++i) {
      auto element = SPC_TRY(of(list->elements()[i], name_of(key) + "[" + std::to_string(i) + "]"));
      SPC_TRY(read(element));
      SPC_TRY(element.nothing_left());
    }
    return {};
  }
  [[nodiscard]] bool has(const char* key) const { return object_->find(key) != nullptr; }

  /// An error that names the first member that nobody took.
  [[nodiscard]] Result<void> nothing_left() const;
  /// `KEY: WHY`, with its path.
  [[nodiscard]] Error problem(std::string_view key, std::string_view why) const;
  [[nodiscard]] std::string name_of(std::string_view key) const;

 private:
  JsonObject(const Json& object, std::string where) : object_(&object), where_(std::move(where)) {}
  const Json* object_;
  std::string where_;
  std::set<std::string, std::less<>> taken_;
};

/// "is not an absolute path" and so on; empty: valid.
std::string path_problem(std::string_view path);

}  // namespace spc
