#pragma once

#include <string>
#include <string_view>

namespace spc::tool {

// What the shells run for a list, one a line.
inline constexpr char kListImages[] = "scontainer images 2>/dev/null | awk 'NR > 1 { print $1 }'";
inline constexpr char kListContainers[] =
    "scontainer containers 2>/dev/null | awk 'NR > 1 { print $1 }'";
inline constexpr char kListDevices[] =
    "scontainer cdi list 2>/dev/null | awk 'NR > 1 { print $1 }'";

/// In single quotes, as fish and zsh read it.
std::string in_single_quotes(std::string_view text, std::string_view for_quote);

}  // namespace spc::tool
