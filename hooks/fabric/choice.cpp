#include "hooks/fabric/choice.hpp"

#include <algorithm>

namespace spc {
namespace {

bool is_mellanox(const FabricDevice& device) { return device.provider == "mlx4" || device.provider == "mlx5"; }
bool is_any(const FabricDevice&) { return true; }

/// Takes from `chosen` those of `kind` that the variable does not name.
Result<void> obey(const HookContext& context, const char* variable, bool (*kind)(const FabricDevice&),
                  const std::vector<FabricDevice>& devices, std::vector<bool>& chosen) {
  const std::string* value = context.of_job(variable);
  if (value == nullptr || value->empty() || *value == "all" || *value == "void") return {};
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (kind(devices[i])) candidates.push_back(i);
  }
  std::vector<std::size_t> named;
  for (std::string_view rest = *value == "none" ? std::string_view() : *value; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    const auto is_it = [&](std::size_t i) {
      const auto number = static_cast<std::size_t>(std::find(candidates.begin(), candidates.end(), i) - candidates.begin());
      return word == std::to_string(number) || word == devices[i].name || (!word.empty() && word == devices[i].pci_address);
    };
    const auto found = std::find_if(candidates.begin(), candidates.end(), is_it);
    if (found == candidates.end()) {
      return Error(ErrorKind::invalid,
                   std::string(variable) + ": there is no adapter " + in_quotes(std::string(word)) + " on this node")
          .hint("numbers, names such as mlx5_0 and PCI addresses are understood, or all and none");
    }
    named.push_back(*found);
  }
  for (const std::size_t i : candidates) {
    if (std::find(named.begin(), named.end(), i) == named.end()) chosen[i] = false;
  }
  return {};
}

}  // namespace

Result<std::vector<bool>> chosen_devices(const HookContext& context, const std::vector<FabricDevice>& devices) {
  std::vector<bool> chosen(devices.size(), true);
  SPC_TRY(obey(context, "MELLANOX_VISIBLE_DEVICES", is_mellanox, devices, chosen));
  SPC_TRY(obey(context, "FABRIC_VISIBLE_DEVICES", is_any, devices, chosen));
  return chosen;
}

}  // namespace spc
