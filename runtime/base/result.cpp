#include "base/result.hpp"

#include <cerrno>
#include <cstring>

namespace spc {

namespace {

ErrorKind kind_of(int err) {
  switch (err) {
    case ENOENT:
    case ENOTDIR: return ErrorKind::not_found;
    case EACCES:
    case EPERM: return ErrorKind::refused;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE: return ErrorKind::no_space;
    default: return ErrorKind::system;
  }
}

/// Returns advice for errors that the environment causes and not the user's input.
const char* advice_for(int err) {
  switch (err) {
    case ENOSPC: return "free space there or ask the administrator to";
    case EDQUOT: return "remove what you no longer need there, such as containers with a name";
    case EROFS: return "the file system is mounted read-only";
    case EMFILE: return "raise the limit of open files: ulimit -n";
    case ENFILE: return "too many open files on this node";
    case ENOMEM: return "out of memory: increase --mem";
    default: return "";
  }
}

}  // namespace

Error Error::from_errno(int err, std::string_view what) {
  // strerrordesc_np returns static text in the C locale without allocation or lock. Messages of
  // this project begin in lower case.
  const char* text = strerrordesc_np(err);
  std::string reason = text != nullptr ? text : "error " + std::to_string(err);
  if (reason.size() > 1 && reason[0] >= 'A' && reason[0] <= 'Z' && reason[1] >= 'a')
    reason[0] = static_cast<char>(reason[0] - 'A' + 'a');
  return {kind_of(err), std::string(what) + ": " + reason, err, advice_for(err)};
}

Error&& Error::during(std::string_view step) && {
  what_ = std::string(step) + ": " + what_;
  return std::move(*this);
}

Error&& Error::during_pull(std::string_view image) && {
  pull_ = true;
  return std::move(*this).during("pull image " + in_quotes(image));
}

Error&& Error::hint(std::string_view advice) && {
  if (hint_.empty()) hint_ = advice;
  return std::move(*this);
}

std::string Error::message() const {
  return hint_.empty() ? what_ : what_ + " (hint: " + hint_ + ")";
}

std::string printable(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kHalf = 140;
  std::string shown;
  if (text.size() <= 2 * kHalf) {
    shown = printable(text);
  } else {
    shown =
        printable(text.substr(0, kHalf)) + " ... " + printable(text.substr(text.size() - kHalf));
  }
  std::string out = "\"";
  for (const char c : shown) {
    if (c == '"') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace spc
