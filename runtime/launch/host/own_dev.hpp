#pragma once

#include "launch/host/host_side.hpp"

namespace spc {

/// --container-contain: in place of the node's /dev one with what every program expects, the GPUs
/// that the job was granted and the fabric's adapters. Call it first: its targets are the first
/// ones (RootSetup::dev_targets). What hooks of the site want besides is added by them.
void add_own_dev(HostSide& side, const LaunchRequest& request);

/// Whether something is mounted there already.
bool has_target(const HostSide& side, const std::string& path);

}  // namespace spc
