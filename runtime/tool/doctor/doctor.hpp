#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "doctor/finding.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {

/// Kernel features, tested in separate processes.
std::vector<Finding> examine_kernel();
/// The user's own image store.
std::vector<Finding> examine_own_store(const Places& places);
/// Programs, service user, node store, plugin: what jobs need on this machine.
std::vector<Finding> examine_node();
// Its parts.
Finding examine_programs();
Finding examine_service_user();
Finding examine_node_store();
Finding examine_plugin();
/// `[shared] directory`, which spares pulls: never more than a warning.
Finding examine_shared_store();
/// For --job: in which order this node looks for an image's bytes, and what of that cannot be used.
Finding examine_image_way();
/// For --job: whether the nodes of a step take images from each other, and if not, why.
Finding examine_peers();
/// What root's containers need of the kernel.
std::vector<Finding> examine_kernel_of_node();
/// What HealthCheckProgram asks: whether jobs can start containers on this node. Without network;
/// answers in about ten seconds whatever hangs.
std::vector<Finding> examine_health();
Finding::Verdict worst_of(const std::vector<Finding>& findings);
/// The registry HOST[:PORT], contacted over HTTP as `import` does.
Finding examine_registry(const std::string& config_path, const std::string& registry);
Finding examine_config(const std::string& path);

/// Prints the known failures in a file (- is standard input), with cause and fix; returns whether
/// there were any.
Result<bool> explain_log(const std::string& path, bool as_json);

}  // namespace spc::tool
