#pragma once

#include <optional>
#include <string_view>

namespace spc {

/// Where the agent looks for its programs: beside itself. So the tests, which are the agent here,
/// run from there.
inline constexpr char kPlaceOfPrograms[] = "/usr/libexec/spank-container";

/// Puts there the real `fuse`, and this test program under the names of those that a test must be
/// able to play, and as `agent`. In the mount namespace of the tests.
void install_programs();

/// What this program does when it was started under one of those names; nothing: it was not.
///
/// `import` does what its request says, letter by letter: g, b or c publishes a layer that begins
/// so, with the digest of that byte; E evicts layer 1; then it waits for all answers and fails with
/// their list as text. `agent step ...` waits for the end of its socket. `layer-verifier` takes its
/// time and accepts a layer that begins with g, refuses b, and dies of c.
std::optional<int> play(std::string_view program, std::string_view word);

}  // namespace spc
