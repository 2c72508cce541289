#pragma once

#include <string>
#include <string_view>

namespace spc {

/// What went wrong, as far as code may branch on it; everything else is in the message.
enum class ErrorKind {
  invalid,      ///< the user's input is wrong
  not_found,    ///< what was asked for does not exist
  refused,      ///< it exists, but not for this user or by this site's policy
  unavailable,  ///< a service (registry, agent, device) does not answer; trying again may help
  no_space,     ///< disk, memory, quota or a table is full
  corrupt,      ///< bytes are not what their digest or format promises
  system,       ///< a system call failed
  internal,     ///< a mistake of ours
};

/// Why something failed. Message grammar, one line: `step: action "object": reason (hint: advice)`.
class Error {
 public:
  Error(ErrorKind kind, std::string what) : kind_(kind), what_(std::move(what)) {}

  /// A failed system call; `err` is errno read on the line of the call, `what` names action and object.
  static Error from_errno(int err, std::string_view what);
  /// Of these parts: what another process has said.
  static Error with(ErrorKind kind, int err, std::string what, std::string advice);

  /// Adds the step in which it happened; the outermost comes first in the message.
  Error&& during(std::string_view step) &&;
  /// Adds advice for whoever can do something about it. The first hint wins: it is nearest to the cause.
  Error&& hint(std::string_view advice) &&;

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  /// errno of the failed call, 0 when no call failed.
  [[nodiscard]] int sys_errno() const noexcept { return errno_; }
  [[nodiscard]] std::string message() const;
  // The parts of the message.
  [[nodiscard]] const std::string& what() const noexcept { return what_; }
  [[nodiscard]] const std::string& advice() const noexcept { return hint_; }

 private:
  ErrorKind kind_;
  int errno_ = 0;
  std::string what_;
  std::string hint_;
};

/// `text` in double quotes with control characters, quotes and invalid bytes escaped: safe for a
/// terminal or a log, at most about 300 characters (the middle of longer text is left out).
std::string in_quotes(std::string_view text);

/// The same escapes without the quotes and without a limit.
std::string printable(std::string_view text);

}  // namespace spc
