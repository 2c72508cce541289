#include <algorithm>
#include <chrono>

#include "base/format.hpp"
#include "image/config/config.hpp"
#include "tool/doctor/bounded.hpp"
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
  if (!config)
    return {kWhat, Finding::Verdict::warning, config.error().message(),
            "the administrator: scontainer doctor --node"};
  std::string way = "the node's store";
  if (examine_node_store().verdict != Finding::Verdict::ok)
    way += " (not ready: see scontainer doctor)";
  // What is wrong, and what to do; empty: nothing.
  const auto wrong = answer_before(std::chrono::steady_clock::now() + std::chrono::seconds(3), [] {
    const Finding found = examine_shared_store();
    return found.verdict == Finding::Verdict::ok ? std::string() : found.detail + "\n" + found.cure;
  });
  const std::string shared =
      wrong.value_or("no answer in time\nlook for a file system that does not answer");
  const std::size_t end = std::min(shared.find('\n'), shared.size());
  if (!config->shared.directory.empty()) {
    way += formatted(", then shared store {}{}", config->shared.directory,
                     shared.empty() ? "" : formatted(" (not used: {})", shared.substr(0, end)));
  }
  for (const auto& [registry, settings] : config->registries) {
    if (settings.mirrors.empty() || settings.blocked) continue;
    way += formatted(", then for images of {} mirrors {}", registry,
                     comma_separated(settings.mirrors));
  }
  if (shared.empty()) return {kWhat, Finding::Verdict::ok, way + ", then the registry", ""};
  return {kWhat, Finding::Verdict::warning, way + ", then the registry",
          shared.substr(std::min(end + 1, shared.size()))};
}

}  // namespace spc::tool
