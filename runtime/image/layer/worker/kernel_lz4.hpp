#pragma once

#include <string>

namespace spc {

/// Whether the running kernel can mount a squashfs that is compressed with lz4, as Debian's and Ubuntu's can and Red Hat's cannot:
/// what its configuration says, in a file below `root`. No: or that is not known.
bool reads_lz4(const std::string& root = "");

}  // namespace spc
