#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A part of a mount, between colons.
struct MountWord {
  std::string text;     ///< without quotes and backslashes
  bool quoted = false;  ///< then it is a path, whatever it looks like
};

/// One mount of a list: its parts, and its original text.
struct MountWords {
  std::vector<MountWord> parts;  ///< at least one
  std::string_view item;
  bool last = false;
};

/// Takes the first mount and the following comma from the list. Split at colons; quoting as in
/// launch/request/quoted_text.hpp.
Result<MountWords> take_mount(std::string_view& list);

}  // namespace spc
