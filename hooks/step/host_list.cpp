#include "hooks/step/host_list.hpp"

#include "hooks/text.hpp"

namespace spc {

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const auto close = list.find(']', at);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view ranges = list.substr(at + 1, close - at - 1);
    const std::string_view first = ranges.substr(0, ranges.find_first_of("-,"));  // with its zeros
    if (!decimal(first)) return std::nullopt;
    host += first;
    at = close;
  }
  if (host.empty() || host.find(']') != std::string::npos) return std::nullopt;
  return host;
}

std::optional<std::uint32_t> tasks_on_node(std::string_view counts, std::uint32_t index) {
  while (!counts.empty()) {
    const std::string_view part = counts.substr(0, counts.find(','));
    counts.remove_prefix(part.size() == counts.size() ? part.size() : part.size() + 1);
    const auto times = part.find("(x");
    std::uint32_t nodes = 1;
    if (times != std::string_view::npos) {
      const auto repeated = part.ends_with(')')
                                ? decimal(part.substr(times + 2, part.size() - times - 3))
                                : std::nullopt;
      if (!repeated) return std::nullopt;
      nodes = *repeated;
    }
    if (index < nodes) return decimal(part.substr(0, times));
    index -= nodes;
  }
  return std::nullopt;
}

}  // namespace spc
