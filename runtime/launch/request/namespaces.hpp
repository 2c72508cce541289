#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.hpp"
#include "protocol/task.hpp"

namespace spc {

/// NamespaceBits of a list as in --container-unshare: NS[,NS...].
Result<std::uint32_t> parse_namespaces(std::string_view list);

}  // namespace spc
