#pragma once

#include <string_view>

namespace spc {

/// What a site can take away with `features_off`: options, without `--`. launch/policy_rules.cpp says when one is used;
/// tests/architecture compares the list with the options that there are.
inline constexpr std::string_view kFeatures[] = {
    "container-mounts",         "container-workdir",  "container-env",     "container-pull",       "container-platform",
    "container-writable",       "container-readonly", "container-name",    "container-mount-home", "container-save",
    "container-remap-root",     "container-unshare",  "container-contain", "container-entrypoint", "container-tmpfs-size",
    "container-gpu",            "container-device",   "container-mpi",
    "container-entrypoint-log", "container-private",  "container-slurm",   "container-explain",    "container-verbose",
};

}  // namespace spc
