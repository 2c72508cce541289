#pragma once

#include <string>
#include <string_view>

namespace spc {

/// The kind of an error, for code to branch on; everything else is in the message.
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

/// Why something failed. Message format, one line: `step: action "object": reason (hint: advice)`.
class Error {
 public:
  Error(ErrorKind kind, std::string what) : kind_(kind), what_(std::move(what)) {}

  /// A failed system call; `err` is errno read on the line of the call, `what` names action and
  /// object.
  static Error from_errno(int err, std::string_view what);
  /// From its parts: an error reported by another process.
  static Error with(ErrorKind kind, int err, std::string what, std::string advice);

  /// Adds the step that failed; the outermost comes first in the message.
  Error&& during(std::string_view step) &&;
  /// Adds advice for the user or administrator. The first hint wins: it is closest to the cause.
  Error&& hint(std::string_view advice) &&;

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  /// errno of the failed call, or 0.
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

/// The same for a name of our own, which root's code makes do with: it handles no text of a user.
inline std::string quoted(const std::string& name) { return '"' + name + '"'; }

/// The escapes of in_quotes() without the quotes and without a limit.
std::string printable(std::string_view text);

}  // namespace spc
