#pragma once

#include <string_view>

namespace spc {

/// Options that a site can disable with `features_off`, without `--`. launch/site/policy_rules.cpp determines when one is used;
/// tests/architecture compares this list with the options.
inline constexpr std::string_view kFeatures[] = {
    "container-mounts",         "container-workdir",  "container-env",     "container-pull",       "container-platform",
    "container-writable",       "container-readonly", "container-name",    "container-mount-home", "container-save",
    "container-remap-root",     "container-unshare",  "container-contain", "container-entrypoint", "container-tmpfs-size",
    "container-gpu",            "container-device",   "container-mpi",
    "container-entrypoint-log", "container-private",  "container-slurm",   "container-explain",    "container-verbose",
};

}  // namespace spc
