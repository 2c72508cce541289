#pragma once

namespace spc {

/// Brings up 127.0.0.1 in the network namespace of the calling process, which must have the privilege. errno on failure.
bool start_loopback();

}  // namespace spc
