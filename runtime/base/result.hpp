#pragma once

#include <cassert>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace spc {

// --- error ---

/// The kind of an error, by which code decides. All other information is in the message.
enum class ErrorKind {
  invalid,      ///< the user's input is wrong
  not_found,    ///< the requested object does not exist
  refused,      ///< it exists, but not for this user or by this site's policy
  unavailable,  ///< a service (registry, agent, device) does not respond; a retry may help
  no_space,     ///< disk, memory, quota or a table is full
  corrupt,      ///< bytes do not match their digest or format
  system,       ///< a system call failed
  internal,     ///< a bug in this program
};

/// The reason of a failure. Message format, one line: `step: action "object": reason (hint:
/// advice)`.
class Error {
 public:
  Error(ErrorKind kind, std::string what) : kind_(kind), what_(std::move(what)) {}
  /// `err`: errno of the failed call, or 0. `advice`: the hint.
  Error(ErrorKind kind, std::string what, int err, std::string advice = {}, bool pull = false)
      : kind_(kind), errno_(err), pull_(pull), what_(std::move(what)), hint_(std::move(advice)) {}

  /// Makes the Error of a failed system call. `err` is errno read on the line of the call, `what`
  /// names action and object.
  static Error from_errno(int err, std::string_view what);

  /// Adds the step that failed; the outermost comes first in the message.
  Error&& during(std::string_view step) &&;
  /// Does the same for the pull of this image, and marks the Error for is_of_pull().
  Error&& during_pull(std::string_view image) &&;
  /// Adds advice for the user or administrator. The first hint wins: it is closest to the cause.
  Error&& hint(std::string_view advice) &&;

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  /// Returns the errno of the failed call, or 0.
  [[nodiscard]] int sys_errno() const noexcept { return errno_; }
  /// Returns whether the pull of an image failed.
  [[nodiscard]] bool is_of_pull() const noexcept { return pull_; }
  [[nodiscard]] std::string message() const;
  // Return the parts of the message.
  [[nodiscard]] const std::string& what() const noexcept { return what_; }
  [[nodiscard]] const std::string& advice() const noexcept { return hint_; }

 private:
  ErrorKind kind_;
  int errno_ = 0;
  bool pull_ = false;
  std::string what_;
  std::string hint_;
};

/// Returns `text` in double quotes with control characters, quotes and invalid bytes escaped: safe
/// for a terminal or a log, at most about 300 characters (the middle of longer text is left out).
std::string in_quotes(std::string_view text);

/// Quotes a name that is not a user's. Root's code has no other function for this, because it
/// handles no text of a user.
inline std::string quoted(const std::string& name) { return '"' + name + '"'; }

/// Returns the text with the escapes of in_quotes(), without quotes and without a limit.
std::string printable(std::string_view text);

// --- result ---

/// A value or the Error that prevented it. Member names follow std::expected. There are no
/// converting constructors: `return some_enum;` from a function of another type does not compile.
template <typename T>
class [[nodiscard]] Result {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
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

/// Success, or the Error that prevented it.
template <>
class [[nodiscard]] Result<void> : public Result<std::monostate> {
 public:
  Result() : Result<std::monostate>(std::monostate()) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Error error) : Result<std::monostate>(std::move(error)) {}
  void operator*() const noexcept {}
};

}  // namespace spc

/// Evaluates to the value of a Result, or returns its Error from this function. Use it as a whole
/// statement or initialiser only: inside a braced aggregate the members already built would leak.
#define SPC_TRY(...) SPC_TRY_OR(, __VA_ARGS__)

/// Does the same; the Error names the step that failed.
#define SPC_TRY_DURING(step, ...) SPC_TRY_OR(.during(step), __VA_ARGS__)

/// Does the same; calls `change`, such as `.during(step)`, on the Error.
#define SPC_TRY_OR(change, ...)                               \
  __extension__({                                             \
    auto spc_try_ = (__VA_ARGS__);                            \
    if (!spc_try_) return std::move(spc_try_).error() change; \
    *std::move(spc_try_);                                     \
  })
