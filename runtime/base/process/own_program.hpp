#pragma once

#include <string>

namespace spc {

/// The absolute path of a program of ours, in the directory where this installation has them:
/// PREFIX/libexec/spank-container. That is found from the file that this very code was loaded from:
/// a program there (then it is its own directory), one in PREFIX/bin, or the library in PREFIX/lib.
/// So an installation may lie anywhere; what is not installed looks beside itself.
///
/// Whoever runs this code, root included, may execute what it finds: who can change that directory
/// can change this code, too. No environment, argument or work directory that a caller chose has a
/// say. Whether the program exists is not looked at.
std::string own_program(const char* name);

}  // namespace spc
