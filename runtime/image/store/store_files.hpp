#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// Small files in a directory of the store owned by the caller. Names are generated: no '/', never a
// link.

/// The whole file, or empty if there is none.
Result<std::optional<std::string>> read_named(int directory, const std::string& name,
                                              std::size_t limit);

enum class Durable { yes, no };

/// Creates or replaces a file: it is written without a name and linked when complete.
/// World-readable for those who can reach it. `durable`: it survives a crash of the node.
Result<void> write_named(int directory, const std::string& name, std::string_view bytes,
                         Durable durable);

/// Removes a file; a missing one is not an error.
Result<void> remove_named(int directory, const std::string& name);

/// Opens a directory of mode 0700, creating it if necessary.
Result<UniqueFd> open_private_directory(int parent, const std::string& name);

/// read_named() in a subdirectory that may be missing.
Result<std::optional<std::string>> read_below(int parent, const std::string& directory,
                                              const std::string& name, std::size_t limit);

/// The names in a directory, without those starting with a dot.
Result<std::vector<std::string>> names_in(int directory);

/// The names of files that a writer wanted to make (write_named, or the agent's put) who was killed
/// before the last step, and that there are not. remove_named() removes what he has left, and so
/// does the next writer.
std::vector<std::string> names_left_in(int directory);

}  // namespace spc
