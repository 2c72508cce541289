#pragma once

#include <functional>
#include <string_view>

#include "base/result.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// Executes `work` in a child; the caller keeps what it is and has. An Error of `work` is given
/// back. `what`: what that is for, for the error if the child ends without a word.
Result<void> run_apart(const std::function<Result<void>()>& work, std::string_view what);
/// The same for a caller that may not look at texts: what `work` says is in `said`, unread.
Result<void> run_apart(const std::function<Result<void>()>& work, std::string_view what,
                       WireError& said);

/// Executes `inside` in a child whose root directory is `root`, which has no privilege; the caller
/// stays where it is.
Result<void> visit_root(int root, const std::function<Result<void>()>& inside);

}  // namespace spc
