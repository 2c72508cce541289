#pragma once

#include <span>

namespace spc {

/// The main function of `import trust POLICY PATH REFERENCE TRANSPORT[,TRANSPORT]`, as the job's
/// user: sends a TrustAnswer.
int answer_trust(std::span<char*> words, int socket) noexcept;

}  // namespace spc
