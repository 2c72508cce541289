#pragma once

#include <optional>
#include <string_view>

namespace spc {

/// Directory in which the agent looks for its programs: its own. The tests act as the agent and
/// therefore run from there.
inline constexpr char kPlaceOfPrograms[] = "/usr/libexec/spank-container";

/// Installs the real `fuse`, and this test program as `agent` and under the names of the programs
/// that a test plays. Affects only the tests' mount namespace.
void install_programs();

/// Plays the program under whose name this one was started. Returns an empty optional if it was
/// started under its own name.
///
/// `import` executes the letters of its request: g, b or c publishes a layer that begins with that
/// byte, under the byte's digest. G or B publishes a record of that byte. E evicts layer 1. It then
/// waits for all answers and fails with their list as text. `import policy` stops. `agent step ...`
/// waits for the end of its socket. `layer-verifier` delays, then accepts a layer that begins with
/// g, refuses b and dies on c. It accepts the record G and refuses B, and requires the digest for
/// both.
std::optional<int> play(std::string_view program, std::string_view word);

}  // namespace spc
