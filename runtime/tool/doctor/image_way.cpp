#include "base/format.hpp"
#include "image/config/config.hpp"
#include "tool/doctor/doctor.hpp"

namespace spc::tool {
namespace {

std::string comma_separated(const std::vector<std::string>& texts) {
  std::string all;
  for (const auto& text : texts) all += (all.empty() ? "" : ", ") + text;
  return all;
}

}  // namespace

Finding examine_image_way() {
  constexpr char kWhat[] = "image sources";
  const auto config = read_config(SPC_CONFIG_FILE);
  if (!config) return {kWhat, Finding::Verdict::warning, config.error().message(), "the administrator: scontainer doctor --node"};
  std::string way = "the node's store";
  if (examine_node_store().verdict != Finding::Verdict::ok) way += " (not ready: see scontainer doctor)";
  const Finding shared = examine_shared_store();
  const bool is_usable = shared.verdict == Finding::Verdict::ok;
  if (!config->shared.directory.empty()) {
    way += formatted(", then shared store {}{}", config->shared.directory, is_usable ? "" : formatted(" (not used: {})", shared.detail));
  }
  for (const auto& [registry, settings] : config->registries) {
    if (settings.mirrors.empty() || settings.blocked) continue;
    way += formatted(", then for images of {} mirrors {}", registry, comma_separated(settings.mirrors));
  }
  return {kWhat, is_usable ? Finding::Verdict::ok : Finding::Verdict::warning, way + ", then the registry", shared.cure};
}

}  // namespace spc::tool
