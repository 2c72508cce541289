#pragma once

#include <cstdint>

#include "base/log.hpp"
#include "base/result.hpp"
#include "launch/host/named_container.hpp"
#include "launch/request/launch_request.hpp"

namespace spc {

/// A container that runs is as the step that started it has asked for: an option of a step that
/// joins it, and that asks for something else, is refused. A warning where that is not known.
/// `upper_size`: what `asked` means by --container-tmpfs-size.
Result<void> check_join(const LaunchRequest& asked, const NamedStart& named,
                        std::uint64_t upper_size, Log& log);

}  // namespace spc
