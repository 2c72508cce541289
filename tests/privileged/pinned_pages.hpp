#pragma once

#include <string>

namespace spc {

/// The request that makes the played `import` attack with pin_pages().
inline constexpr char kPinPages[] = "pin pages";
/// The one that makes it hang_in_read().
inline constexpr char kHang[] = "hang";
/// A directory that holds the file "pages", whose server answers a read when the test wants it to.
inline constexpr char kSlowFiles[] = "slow-files";

/// As a taken-over `import`: has the kernel pin pages of a layer's file for a read that has not
/// ended when the layer is verified and published. Speaks the protocol of this tree and the one in
/// which `import` was handed the file. Returns what came of it.
std::string pin_pages();
/// Leaves a thread in a read that a signal does not end, SIGKILL included.
std::string hang_in_read();

}  // namespace spc
