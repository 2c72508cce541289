#pragma once

#include <span>

namespace spc {

/// `import resolve IMAGE PULL` (protocol/submit.hpp), run as the user, on the machine of srun.
/// `words`: after `resolve`. Returns the exit status; says nothing else.
int answer_resolve(std::span<char*> words) noexcept;

}  // namespace spc
