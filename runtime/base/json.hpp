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

/// What a document may be. It is refused, whatever these say, if it is not JSON, if an object has a key twice (readers differ in
/// which one counts) or if anything stands behind the value.
struct JsonLimits {
  std::size_t bytes = 64 << 20;
  std::size_t depth = 32;
  std::size_t values = 200'000;
  ErrorKind kind = ErrorKind::corrupt;  ///< of the error that refuses it; `invalid` where a person has written it
};

/// A JSON value: the one place in which documents are read and written. Reading, for what is read leniently:
///
///   const Json document = SPC_TRY(Json::parse(text));
///   for (const Json& layer : *SPC_TRY(document.list("layers"))) digest = SPC_TRY(layer.text("digest"));
///
/// and base/json_object.hpp where every member must be known. Writing:
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

  /// An object of these members; nothing else is written in braces.
  Json(std::initializer_list<Member> members);
  static Json array(Array elements = {});
  static Json object(Object members);
  static Json object();

  template <std::same_as<bool> T>
  Json(T value) : Json(Value(value)) {}  // NOLINT(google-explicit-constructor)
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value)  // NOLINT(google-explicit-constructor)
      : Json(value < 0 ? Value(static_cast<std::int64_t>(value)) : Value(static_cast<std::uint64_t>(value))) {}
  Json(double value) : Json(Value(value)) {}  // NOLINT(google-explicit-constructor)
  template <std::convertible_to<std::string_view> T>
  Json(const T& text) : Json(Value(std::string(std::string_view(text)))) {}  // NOLINT(google-explicit-constructor)
  Json(const std::vector<std::string>& texts);                               // NOLINT(google-explicit-constructor)
  Json(const std::set<std::string>& texts);                                  // NOLINT(google-explicit-constructor)
  Json(const std::map<std::string, std::string>& texts);                     // NOLINT(google-explicit-constructor)

  /// Errors say why, not of which document: `is not JSON (at byte 17)`.
  static Result<Json> parse(std::string_view text, const JsonLimits& limits = {});

  /// How members are ordered when written: by their keys, or as they were read and added.
  enum class Order { sorted, kept };
  /// In one line, or indented by so many `fill`. Bytes that are not UTF-8 become U+FFFD.
  [[nodiscard]] std::string str(unsigned indent = 0, char fill = ' ', Order order = Order::sorted) const;

  [[nodiscard]] bool is_null() const noexcept { return std::holds_alternative<std::monostate>(value_); }
  [[nodiscard]] bool is_boolean() const noexcept { return std::holds_alternative<bool>(value_); }
  /// A whole number from 0 to 2^64-1.
  [[nodiscard]] bool is_number() const noexcept { return std::holds_alternative<std::uint64_t>(value_); }
  [[nodiscard]] bool is_text() const noexcept { return std::holds_alternative<std::string>(value_); }
  [[nodiscard]] bool is_array() const noexcept { return std::holds_alternative<Array>(value_); }
  [[nodiscard]] bool is_object() const noexcept { return std::holds_alternative<Object>(value_); }

  // What is there, or false, 0 or nothing if it is something else.
  [[nodiscard]] bool as_boolean() const noexcept;
  [[nodiscard]] std::uint64_t as_number() const noexcept;
  [[nodiscard]] const std::string& as_text() const noexcept;
  [[nodiscard]] const Array& elements() const noexcept;
  [[nodiscard]] const Object& members() const noexcept;
  /// Of elements or members.
  [[nodiscard]] std::size_t size() const noexcept { return elements().size() + members().size(); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }

  /// A member of an object; nullptr if it is absent or null.
  [[nodiscard]] const Json* find(std::string_view key) const noexcept;
  // The same in its type. One of another type, or a text with a NUL, is an error that names it: `"size" is not a number ...`.
  [[nodiscard]] Result<std::optional<std::string>> text(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::uint64_t>> number(std::string_view key) const;
  /// The elements of an array; none if it is not there. Never nullptr.
  [[nodiscard]] Result<const Array*> list(std::string_view key) const;

  /// The member, which is made if it is not there; what was no object becomes one.
  Json& operator[](std::string_view key);
  /// What was no array becomes one.
  void push_back(Json element);
  void erase(std::string_view key);

  friend bool operator==(const Json& one, const Json& other);

 private:
  using Value = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object>;
  explicit Json(Value value) noexcept;
  class Builder;
  friend class JsonWriter;

  Value value_;
};

struct Json::Member {
  std::string key;
  Json value;
  friend bool operator==(const Member& one, const Member& other) { return one.key == other.key && one.value == other.value; }
};

}  // namespace spc
