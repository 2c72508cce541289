#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// Small files in a directory of the store that belongs to the caller. Names are of our own making: no '/', never a link.

/// The whole file, or empty when there is none.
Result<std::optional<std::string>> read_named(int directory, const std::string& name, std::size_t limit);

enum class Durable { yes, no };

/// Makes or replaces a file: it is written without a name and gets it when it is complete. Anybody may read it who can
/// reach it. `durable`: it survives a crash of the node.
Result<void> write_named(int directory, const std::string& name, std::string_view bytes, Durable durable);

/// Takes a file away; that it is not there is fine.
Result<void> remove_named(int directory, const std::string& name);

/// Opens a directory of mode 0700, after making it if need be.
Result<UniqueFd> open_private_directory(int parent, const std::string& name);

/// read_named() in a subdirectory that need not be there.
Result<std::optional<std::string>> read_below(int parent, const std::string& directory, const std::string& name,
                                              std::size_t limit);

/// The names in a directory, without those that begin with a dot.
Result<std::vector<std::string>> names_in(int directory);

}  // namespace spc
