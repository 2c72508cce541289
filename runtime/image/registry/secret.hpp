#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// Text that is overwritten in memory when it is no longer needed. It is never shown, and never an
/// argument of a program.
class SecretText {
 public:
  SecretText() = default;
  explicit SecretText(std::string text) : text_(std::move(text)) {}
  SecretText(const SecretText&) = default;
  SecretText(SecretText&& other) noexcept : text_(std::move(other.text_)) { other.wipe(); }
  SecretText& operator=(SecretText other) noexcept {
    text_.swap(other.text_);
    return *this;
  }
  ~SecretText() { wipe(); }

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] bool empty() const { return text_.empty(); }

 private:
  void wipe() noexcept;
  std::string text_;
};

/// What one user shows to one registry. One of: user name and password; an identity token, which
/// the login server changes for a token that lasts minutes; a registry token, which is shown as it
/// is.
struct RegistrySecret {
  std::string username;
  SecretText password;
  SecretText identity_token;
  SecretText registry_token;
  std::string source;  ///< where it was found, for messages: a file or a program

  [[nodiscard]] bool empty() const {
    return password.empty() && identity_token.empty() && registry_token.empty();
  }

  /// As a sealed memory file with records `key=value\0` (UserSourceKind::secret).
  [[nodiscard]] Result<UniqueFd> to_file() const;
  /// Reads one that somebody else made, at most 64 KiB. What is not a sealed memory file is
  /// refused: reading anything else could wait for ever.
  static Result<RegistrySecret> from_file(int fd);
};

}  // namespace spc
