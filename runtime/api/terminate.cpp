#include <cstdlib>

// Called for an exception that nobody catches; guard() in runtime.cpp catches all. The one of
// libstdc++ prints the exception's type, for which it brings a demangler of 50 KB along.
namespace __gnu_cxx {
void __verbose_terminate_handler();
void __verbose_terminate_handler() { std::abort(); }
}  // namespace __gnu_cxx
