#include <cstdio>

#include "image/config/config_example.hpp"

/// While the package is built: prints the example that is installed.
int main() { return std::fputs(spc::config_example().c_str(), stdout) < 0 ? 1 : 0; }
