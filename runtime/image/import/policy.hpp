#pragma once

namespace spc {

/// Reads config.toml and sends a PolicyAnswer to this socket; returns the exit code of the program.
int answer_policy(int socket) noexcept;

}  // namespace spc
