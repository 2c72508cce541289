// The name by which Slurm passes options to the plugin. Compiled once per name; all other code is
// the same in both.
#include "spank/user_side.hpp"

#define SPC_REGISTER(name) SPANK_PLUGIN(name, 1)

#pragma GCC visibility push(default)
extern "C" {
// In C++, constants have internal linkage unless they are declared extern first.
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPC_REGISTER(SPC_PLUGIN)
}
#pragma GCC visibility pop
