#include "launch/request/device_names.hpp"

#include <algorithm>

#include "hooks/cdi/names.hpp"

namespace spc {

Result<void> add_device_names(std::vector<std::string>& devices, std::string_view list) {
  for (;;) {
    const std::string_view text = list.substr(0, list.find(','));
    const std::string name = SPC_TRY(CdiName::parse(text)).str();
    if (std::find(devices.begin(), devices.end(), name) == devices.end()) devices.push_back(name);
    if (text.size() == list.size()) return {};
    list.remove_prefix(text.size() + 1);
  }
}

}  // namespace spc
