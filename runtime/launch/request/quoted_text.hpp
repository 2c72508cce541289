#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

/// One item of an option's argument, up to a separator.
struct QuotedPiece {
  std::string text;
  char end = '\0';  ///< the following separator; '\0': the last item
};

/// Takes the next piece off `rest`; there is always one, if an empty one. A backslash takes its
/// meaning from a separator, a blank, a quote or a backslash that follows, and is itself anywhere
/// else. A piece that begins with a quote (") ends at the next one, and separators in it are text.
Result<QuotedPiece> next_piece(std::string_view& rest, std::string_view separators);

}  // namespace spc
