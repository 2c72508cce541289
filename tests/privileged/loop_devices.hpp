#pragma once

#include <vector>

namespace spc {

/// Returns the numbers of the loop devices whose file is in /var/lib, which is private to each test
/// program.
std::vector<int> our_loop_devices();

}  // namespace spc
