#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.hpp"

namespace spc {

/// A text of fixed size in a message between processes. Whatever bytes arrive, view() stays in
/// bounds.
template <std::size_t Size>
class Text {
 public:
  static bool fits(std::string_view text) noexcept { return text.size() < Size; }

  /// A longer text loses its middle: start and end say what was done to what, and why it failed.
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

/// An Error in a message, restored by the receiver with kind, errno, text and hint. One that was
/// never set means success.
class WireError {
 public:
  WireError() = default;
  explicit WireError(const Error& error) noexcept
      : kind_(static_cast<std::uint32_t>(error.kind()) + 1), errno_(error.sys_errno()) {
    text_.set(error.what());
    hint_.set(error.advice());
  }

  [[nodiscard]] bool is_set() const noexcept { return kind_ != 0; }
  /// Only if it is set. An unknown kind or control characters from the sender are not accepted.
  [[nodiscard]] Error error() const;
  /// The same as it is, for root's processes: they look at no text, and pass it on to one that
  /// does.
  [[nodiscard]] Error unread() const {
    const bool is_known = is_set() && kind_ <= static_cast<std::uint32_t>(ErrorKind::internal) + 1;
    return Error::with(is_known ? static_cast<ErrorKind>(kind_ - 1) : ErrorKind::internal, errno_,
                       text_.str(), hint_.str());
  }

 private:
  std::uint32_t kind_ = 0;  // an ErrorKind plus 1
  std::int32_t errno_ = 0;
  Text<1000> text_;
  Text<400> hint_;
};
static_assert(std::is_trivially_copyable_v<WireError>);

inline Error WireError::error() const {
  const Error as_sent = unread();
  return Error::with(as_sent.kind(), errno_, printable(as_sent.what()),
                     printable(as_sent.advice()));
}

}  // namespace spc
