// The name by which Slurm passes options to the plugin. Compiled once for each name: all else is
// the same in both.
#include "user_side.hpp"

#define SPC_REGISTER(name) SPANK_PLUGIN(name, 1)

#pragma GCC visibility push(default)
extern "C" {
// Constants would be invisible outside of a C++ file unless they are declared first.
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPC_REGISTER(SPC_PLUGIN)
}
#pragma GCC visibility pop
