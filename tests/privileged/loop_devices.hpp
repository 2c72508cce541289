#pragma once

#include <vector>

namespace spc {

/// The numbers of the loop devices behind which there is a file of /var/lib, which every test
/// program has for itself.
std::vector<int> our_loop_devices();

}  // namespace spc
