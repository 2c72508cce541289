#pragma once

#include <string>

namespace spc {

/// The request on which the played `import` attacks with pin_pages().
inline constexpr char kPinPages[] = "pin pages";
/// The request on which it calls hang_in_read().
inline constexpr char kHang[] = "hang";
/// A directory with the file "pages", whose server answers a read when the test allows it.
inline constexpr char kSlowFiles[] = "slow-files";

/// Acts as a compromised `import`: makes the kernel pin pages of a layer's file for a read that
/// outlasts the layer's verification and publication. Uses this tree's protocol and the one in
/// which `import` received the file. Returns a description of the result.
std::string pin_pages();
/// Leaves a thread in a read that no signal ends, not even SIGKILL.
std::string hang_in_read();

}  // namespace spc
