#pragma once

namespace spc {

/// Makes 127.0.0.1 usable in the network namespace of the calling process, which must have the privilege. errno tells why not.
bool start_loopback();

}  // namespace spc
