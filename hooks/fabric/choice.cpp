#include "hooks/fabric/choice.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "base/format.hpp"

namespace spc {
namespace {

bool is_mellanox(const FabricDevice& device) {
  return device.provider == "mlx4" || device.provider == "mlx5";
}
bool is_any(const FabricDevice&) { return true; }

/// Whether the job calls it so; `number`: in the order of those that the variable speaks of.
bool is_called(const FabricDevice& device, std::size_t number, std::string_view word) {
  return word == std::to_string(number) || word == device.name ||
         (!word.empty() && word == device.pci_address);
}

bool fits_pattern(const FabricDevice& device, const std::string& pattern) {
  return ::fnmatch(pattern.c_str(), device.name.c_str(), 0) == 0 ||
         (!device.pci_address.empty() &&
          ::fnmatch(pattern.c_str(), device.pci_address.c_str(), 0) == 0);
}

/// Of the adapters of `kind`, leaves chosen only those that the variable names.
Result<void> obey(const HookContext& context, const char* variable,
                  bool (*kind)(const FabricDevice&), std::vector<FabricAdapter>& adapters) {
  const std::string* value = context.of_job(variable);
  if (value == nullptr || value->empty() || *value == "all" || *value == "void") return {};
  std::vector<FabricAdapter*> candidates;
  for (FabricAdapter& adapter : adapters) {
    if (kind(adapter.device)) candidates.push_back(&adapter);
  }
  std::set<const FabricAdapter*> named;
  for (std::string_view rest = *value == "none" ? std::string_view() : *value; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    std::size_t number = 0;
    while (number < candidates.size() && !is_called(candidates[number]->device, number, word))
      ++number;
    if (number == candidates.size()) {
      return Error(ErrorKind::invalid,
                   formatted("{}: no adapter {} on this node", variable, in_quotes(word)))
          .hint("use indices, names such as mlx5_0, PCI addresses, all or none");
    }
    named.insert(candidates[number]);
  }
  for (FabricAdapter* adapter : candidates) {
    if (!named.contains(adapter)) adapter->chosen = false;
  }
  return {};
}

}  // namespace

Result<std::vector<FabricAdapter>> choose_adapters(const HookContext& context,
                                                   std::vector<FabricDevice> devices) {
  std::vector<FabricAdapter> adapters;
  const auto of_site = context.settings_of("fabric_devices");
  for (FabricDevice& device : devices) {
    const bool allowed =
        of_site.empty() || std::ranges::any_of(of_site, [&](const std::string& pattern) {
          return fits_pattern(device, pattern);
        });
    adapters.push_back({std::move(device), allowed, !allowed});
  }
  SPC_TRY(obey(context, "MELLANOX_VISIBLE_DEVICES", is_mellanox, adapters));
  SPC_TRY(obey(context, "FABRIC_VISIBLE_DEVICES", is_any, adapters));
  return adapters;
}

}  // namespace spc
