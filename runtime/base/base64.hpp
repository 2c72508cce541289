#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace spc {

/// RFC 4648, 4, with padding.
std::string base64(std::string_view bytes);
/// Empty if it is not base64. Padding is optional.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace spc
