#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "doctor/finding.hpp"
#include "tool/places.hpp"

namespace spc {

/// What the kernel can do, tried out in processes of their own.
std::vector<Finding> examine_kernel();
/// The user's own place for images.
std::vector<Finding> examine_own_store(const Places& places);
/// Programs, service user, node store, plugin: what jobs need on this machine.
std::vector<Finding> examine_node();
/// The registry HOST[:PORT], asked by HTTP as `import` would ask it.
Finding examine_registry(const std::string& config_path, const std::string& registry);
Finding examine_config(const std::string& path);

/// Prints which known failures a file (- is standard input) names, with cause and cure; whether there were any.
Result<bool> explain_log(const std::string& path, bool as_json);

}  // namespace spc
