#pragma once

#include <string>
#include <vector>

#include "tool/places.hpp"

namespace spc {

/// One thing that was looked at, and what to do about it.
struct Finding {
  enum class Verdict { ok, warning, failed };
  std::string what;
  Verdict verdict = Verdict::ok;
  std::string detail;  ///< what was found
  std::string cure;    ///< empty: nothing is to be done
};

/// What the kernel can do, tried out in processes of their own.
std::vector<Finding> examine_kernel();
/// The user's own place for images.
std::vector<Finding> examine_own_store(const Places& places);
/// Programs, service user, node store, plugin: what jobs need on this machine.
std::vector<Finding> examine_node();
/// The registry HOST[:PORT], asked by HTTP as `import` would ask it.
Finding examine_registry(const std::string& config_path, const std::string& registry);
Finding examine_config(const std::string& path);

}  // namespace spc
