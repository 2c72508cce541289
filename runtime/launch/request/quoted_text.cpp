#include "launch/request/quoted_text.hpp"

namespace spc {

Result<QuotedPiece> next_piece(std::string_view& rest, std::string_view separators) {
  QuotedPiece piece;
  const bool begins_quoted = rest.starts_with('"');
  bool open = begins_quoted;
  if (begins_quoted) rest.remove_prefix(1);
  const auto special = [&](char c) {
    return c == '"' || c == '\\' || c == ' ' || separators.find(c) != std::string_view::npos;
  };
  while (!rest.empty()) {
    char c = rest[0];
    rest.remove_prefix(1);
    if (open && c == '"') {
      open = false;
      continue;
    }
    if (!open && separators.find(c) != std::string_view::npos) {
      piece.end = c;
      return piece;
    }
    if (begins_quoted && !open) return Error(ErrorKind::invalid, "text after the closing quote");
    if (c == '\\' && !rest.empty() && special(rest[0])) {
      c = rest[0];
      rest.remove_prefix(1);
    }
    piece.text += c;
  }
  if (open) return Error(ErrorKind::invalid, "the closing quote is missing");
  return piece;
}

}  // namespace spc
