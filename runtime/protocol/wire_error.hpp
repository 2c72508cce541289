#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/result.hpp"

namespace spc {

/// A text of fixed size in a message between processes. view() stays in bounds for any received
/// bytes.
template <std::size_t Size>
class Text {
 public:
  static bool fits(std::string_view text) noexcept { return text.size() < Size; }

  /// Sets the text. A longer one loses its middle: start and end name the action, the object and
  /// the reason.
  void set(std::string_view text) noexcept {
    static constexpr std::string_view kGap = " ... ";
    std::memset(bytes_, 0, Size);
    if (fits(text)) return static_cast<void>(text.copy(bytes_, text.size()));
    const std::size_t half = (Size - 1 - kGap.size()) / 2;
    text.copy(bytes_, half);
    kGap.copy(bytes_ + half, kGap.size());
    text.substr(text.size() - half).copy(bytes_ + half + kGap.size(), half);
  }
  [[nodiscard]] std::string_view view() const noexcept { return {bytes_, ::strnlen(bytes_, Size)}; }
  [[nodiscard]] std::string str() const { return std::string(view()); }
  [[nodiscard]] bool empty() const noexcept { return bytes_[0] == '\0'; }

 private:
  char bytes_[Size] = {};
};

/// An Error in a message, restored by the receiver with all its parts. Unset means
/// success.
class WireError {
 public:
  WireError() = default;
  explicit WireError(const Error& error) noexcept
      : kind_(static_cast<std::uint16_t>(static_cast<int>(error.kind()) + 1)),
        pull_(error.is_of_pull()),
        errno_(error.sys_errno()) {
    text_.set(error.what());
    hint_.set(error.advice());
  }

  [[nodiscard]] bool is_set() const noexcept { return kind_ != 0; }
  /// Returns the Error; call it only if it is set. An unknown kind or control characters from the
  /// sender are not accepted.
  [[nodiscard]] Error error() const;
  /// Returns the Error as received, for root's processes: they do not read the text, and pass it on
  /// to a process that does.
  [[nodiscard]] Error unread() const {
    const auto kind = std::min(kind_ - 1U, static_cast<unsigned>(ErrorKind::internal));
    return {static_cast<ErrorKind>(kind), text_.str(), errno_, hint_.str(), pull_ != 0};
  }

 private:
  std::uint16_t kind_ = 0;  // an ErrorKind plus 1
  std::uint16_t pull_ = 0;
  std::int32_t errno_ = 0;
  Text<1000> text_;
  Text<400> hint_;
};
static_assert(std::is_trivially_copyable_v<WireError>);

inline Error WireError::error() const {
  const Error as_sent = unread();
  return {as_sent.kind(), printable(as_sent.what()), errno_, printable(as_sent.advice()),
          pull_ != 0};
}

}  // namespace spc
