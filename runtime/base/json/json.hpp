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

/// Limits of a document. It is always refused if it is not JSON, if an object has a duplicate key
/// (readers differ in which one wins) or if there is trailing data.
struct JsonLimits {
  std::size_t bytes = 64 << 20;
  std::size_t depth = 32;
  std::size_t values = 200'000;
  ErrorKind kind =
      ErrorKind::corrupt;  ///< of a parse error; `invalid` for documents written by people
};

/// A JSON value: the one place where documents are read and written. To read with tolerance:
///
///   const Json document = SPC_TRY(Json::parse(text));
///   for (const Json& layer : *SPC_TRY(document.list("layers"))) digest =
///   SPC_TRY(layer.text("digest"));
///
/// and base/json/json_object.hpp if every member must be known. To write:
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

  /// An object with these members; braces mean nothing else.
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

  /// Errors give the reason, not the document: `is not JSON (at byte 17)`.
  static Result<Json> parse(std::string_view text, const JsonLimits& limits = {});

  /// Order of members in the output: by key, or as read and added.
  enum class Order { sorted, kept };
  /// On one line, or indented by `fill`. Bytes that are not UTF-8 become U+FFFD.
  [[nodiscard]] std::string str(unsigned indent = 0, char fill = ' ',
                                Order order = Order::sorted) const;

  [[nodiscard]] bool is_null() const noexcept {
    return std::holds_alternative<std::monostate>(value_);
  }
  [[nodiscard]] bool is_boolean() const noexcept { return std::holds_alternative<bool>(value_); }
  /// A whole number from 0 to 2^64-1.
  [[nodiscard]] bool is_number() const noexcept {
    return std::holds_alternative<std::uint64_t>(value_);
  }
  [[nodiscard]] bool is_text() const noexcept {
    return std::holds_alternative<std::string>(value_);
  }
  [[nodiscard]] bool is_array() const noexcept { return std::holds_alternative<Array>(value_); }
  [[nodiscard]] bool is_object() const noexcept { return std::holds_alternative<Object>(value_); }

  // The value, or false, 0 or empty if it has another type.
  [[nodiscard]] bool as_boolean() const noexcept;
  [[nodiscard]] std::uint64_t as_number() const noexcept;
  [[nodiscard]] const std::string& as_text() const noexcept;
  [[nodiscard]] const Array& elements() const noexcept;
  [[nodiscard]] const Object& members() const noexcept;
  /// Number of elements or members.
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }

  /// A member of an object; nullptr if it is absent or null.
  [[nodiscard]] const Json* find(std::string_view key) const noexcept;
  // Typed members. Another type, or a text with a NUL, is an error that names the member: `"size"
  // is not a number ...`.
  [[nodiscard]] Result<std::optional<std::string>> text(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::uint64_t>> number(std::string_view key) const;
  /// The elements of an array; empty if it is missing. Never nullptr.
  [[nodiscard]] Result<const Array*> list(std::string_view key) const;

  /// The member, created if it is missing; a non-object becomes an object.
  Json& operator[](std::string_view key);
  /// A non-array becomes an array.
  void push_back(Json element);
  void erase(std::string_view key);

  friend bool operator==(const Json& one, const Json& other);

 private:
  using Value = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string,
                             Array, Object>;
  /// What can be made here, where Member is not known yet.
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

}  // namespace spc
