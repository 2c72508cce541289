#pragma once

#include <cassert>
#include <concepts>
#include <optional>
#include <utility>
#include <variant>

#include "base/error.hpp"

namespace spc {

/// A value or the Error that prevented it. Member names follow std::expected.
/// Nothing converts its way in: `return some_enum;` from a function of another type does not
/// compile.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)
  template <typename U>
  requires(!std::same_as<std::remove_cvref_t<U>, T> &&
           !std::same_as<std::remove_cvref_t<U>, Error> &&
           !std::same_as<std::remove_cvref_t<U>, Result>) Result(U&&)
  = delete;

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  T& value() & { return get(state_); }
  const T& value() const& { return get(state_); }
  T&& value() && { return std::move(get(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  Error& error() & { return std::get<1>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  template <typename State>
  static auto& get(State& state) {
    assert(state.index() == 0);
    return *std::get_if<0>(&state);
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  void operator*() const noexcept {}
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_;
};

}  // namespace spc

/// The value of a Result, or return its Error from this function. Use it as a whole statement or
/// initialiser only: inside a braced aggregate the members already built would leak.
#define SPC_TRY(...)                                   \
  __extension__({                                      \
    auto spc_try_ = (__VA_ARGS__);                     \
    if (!spc_try_) return std::move(spc_try_).error(); \
    *std::move(spc_try_);                              \
  })

/// The same; the Error names the step that failed.
#define SPC_TRY_DURING(step, ...)                                   \
  __extension__({                                                   \
    auto spc_try_ = (__VA_ARGS__);                                  \
    if (!spc_try_) return std::move(spc_try_).error().during(step); \
    *std::move(spc_try_);                                           \
  })
