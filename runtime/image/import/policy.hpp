#pragma once

namespace spc {

/// Reads config.toml and sends a PolicyAnswer to this socket; gives back the program's exit code.
int answer_policy(int socket) noexcept;

}  // namespace spc
