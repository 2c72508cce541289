#pragma once

#include <string>

namespace spc {

/// Returns the absolute path of a program of this package, in the installation's program directory
/// PREFIX/libexec/spank-container. The path is derived from the file that this code was loaded
/// from, so an installation may have any prefix: a program in that directory, a program in
/// PREFIX/bin, or the library in PREFIX/lib. For a program elsewhere, its own directory is used.
///
/// Every user of this code, root included, may execute the result: a user who can change that
/// directory can change this code as well. No environment variable, argument or work directory of a
/// caller has an influence. Does not check whether the program exists.
std::string own_program(const char* name);

}  // namespace spc
