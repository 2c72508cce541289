#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/result.hpp"

namespace spc {

// --- json ---

/// Limits of a document. A document is always refused if it is not JSON, if an object has a
/// duplicate key (readers differ in which one wins) or if there is trailing data.
struct JsonLimits {
  std::size_t bytes = 64 << 20;
  std::size_t depth = 32;
  std::size_t values = 200'000;
  /// kind of a parse error; `invalid` for documents written by people
  ErrorKind kind = ErrorKind::corrupt;
};

/// A JSON value. This class is the only code that reads and writes JSON documents. To read a
/// document and ignore unknown members:
///
///   const Json document = SPC_TRY(Json::parse(text));
///   for (const Json& layer : *SPC_TRY(document.list("layers")))
///     digest = SPC_TRY(layer.text("digest"));
///
/// JsonObject below refuses unknown members. To write:
///
///   Json object{{"name", image.name}, {"layers", Json::array()}};
///   object["layers"].push_back(layer.str());
///   std::puts(object.str(2).c_str());
class Json {
 public:
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;

  Json() noexcept;  ///< null
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  /// Makes an object with these members. Braces always mean an object.
  Json(std::initializer_list<Member> members);
  static Json array(Array elements = {});
  static Json object(Object members);
  static Json object();

  template <std::same_as<bool> T>
  Json(T value) : Json(Scalar(value)) {}  // NOLINT(google-explicit-constructor)
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value)  // NOLINT(google-explicit-constructor)
      : Json(value < 0 ? Scalar(static_cast<std::int64_t>(value))
                       : Scalar(static_cast<std::uint64_t>(value))) {}
  Json(double value) : Json(Scalar(value)) {}  // NOLINT(google-explicit-constructor)
  template <std::convertible_to<std::string_view> T>
  Json(const T& text)
      : Json(Scalar(std::string(std::string_view(text)))) {}  // NOLINT(google-explicit-constructor)
  Json(const std::vector<std::string>& texts);                // NOLINT(google-explicit-constructor)
  Json(const std::set<std::string>& texts);                   // NOLINT(google-explicit-constructor)
  Json(const std::map<std::string, std::string>& texts);      // NOLINT(google-explicit-constructor)

  /// Parses a document. Errors give the reason, not the document: `is not JSON (at byte 17)`.
  static Result<Json> parse(std::string_view text, const JsonLimits& limits = {});

  /// Order of members in the output: by key, or as read and added.
  enum class Order { sorted, kept };
  /// Writes the value on one line, or indented by `fill`. Bytes that are not UTF-8 become U+FFFD.
  [[nodiscard]] std::string str(unsigned indent = 0, char fill = ' ',
                                Order order = Order::sorted) const;

  [[nodiscard]] bool is_null() const noexcept {
    return std::holds_alternative<std::monostate>(value_);
  }
  [[nodiscard]] bool is_boolean() const noexcept { return std::holds_alternative<bool>(value_); }
  /// Returns whether the value is a whole number from 0 to 2^64-1.
  [[nodiscard]] bool is_number() const noexcept {
    return std::holds_alternative<std::uint64_t>(value_);
  }
  [[nodiscard]] bool is_text() const noexcept {
    return std::holds_alternative<std::string>(value_);
  }
  [[nodiscard]] bool is_array() const noexcept { return std::holds_alternative<Array>(value_); }
  [[nodiscard]] bool is_object() const noexcept { return std::holds_alternative<Object>(value_); }

  // Returns the value, or false, 0 or empty if it has another type.
  [[nodiscard]] bool as_boolean() const noexcept;
  [[nodiscard]] std::uint64_t as_number() const noexcept;
  [[nodiscard]] const std::string& as_text() const noexcept;
  [[nodiscard]] const Array& elements() const noexcept;
  [[nodiscard]] const Object& members() const noexcept;
  /// Returns the number of elements or members.
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }

  /// Returns a member of an object; nullptr if it is absent or null.
  [[nodiscard]] const Json* find(std::string_view key) const noexcept;
  // Return typed members. Another type, or a string with a NUL, is an error that names the member:
  // `"size" is not a number ...`.
  [[nodiscard]] Result<std::optional<std::string>> text(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::uint64_t>> number(std::string_view key) const;
  /// Returns the elements of an array; empty if it is missing. Never nullptr.
  [[nodiscard]] Result<const Array*> list(std::string_view key) const;

  /// Returns the member, and creates a missing one. A non-object becomes an object.
  Json& operator[](std::string_view key);
  /// Appends an element. A non-array becomes an array.
  void push_back(Json element);
  void erase(std::string_view key);

  friend bool operator==(const Json& one, const Json& other);

 private:
  using Value = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string,
                             Array, Object>;
  /// Scalar types; usable here, where Member is still incomplete.
  using Scalar = std::variant<bool, std::int64_t, std::uint64_t, double, std::string>;
  explicit Json(Value value) noexcept;
  explicit Json(Scalar value) noexcept;
  class Builder;
  friend class JsonWriter;

  Value value_;
};

struct Json::Member {
  std::string key;
  Json value;
  friend bool operator==(const Member& one, const Member& other) {
    return one.key == other.key && one.value == other.value;
  }
};

// --- json object ---

/// An object of a document written by people or by site programs. The take functions read each
/// member by key and type. Members that were not taken are refused at the end, so a mistyped key is
/// never ignored. Errors are ErrorKind::invalid and name the member with its path:
/// `mounts[1].target: is not an absolute path`. An absent or null member leaves the target
/// unchanged. The Json value must outlive the JsonObject.
class JsonObject {
 public:
  /// Parses a whole document, which must be an object.
  static Result<Json> parse(std::string_view text);

  /// Wraps `value`, which must be an object. `where`: prefix of keys in errors; empty for the
  /// document itself.
  static Result<JsonObject> of(const Json& value, std::string where = "");

  Result<void> take(const char* key, bool& into);
  Result<void> take(const char* key, std::string& into);
  Result<void> take(const char* key, std::uint64_t& into);
  Result<void> take(const char* key, std::vector<std::string>& into);
  Result<void> take(const char* key, std::set<std::string>& into);
  Result<void> take(const char* key, std::map<std::string, std::string>& into);
  /// Reads an absolute path without `..`.
  Result<void> take_path(const char* key, std::string& into);
  Result<void> take_paths(const char* key, std::vector<std::string>& into);

  /// Returns the member, for special formats; nullptr if it is missing.
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

  /// Returns an error for the first member that was not taken.
  [[nodiscard]] Result<void> nothing_left() const;
  /// Returns the error `KEY: WHY`, with the key's path.
  [[nodiscard]] Error problem(std::string_view key, std::string_view why) const;
  [[nodiscard]] std::string name_of(std::string_view key) const;

 private:
  JsonObject(const Json& object, std::string where) : object_(&object), where_(std::move(where)) {}
  const Json* object_;
  std::string where_;
  std::set<std::string, std::less<>> taken_;
};

/// Returns "is not an absolute path" and so on; empty for a valid path.
std::string path_problem(std::string_view path);

}  // namespace spc
