#include "tool/doctor/node_list.hpp"

#include <algorithm>
#include <charconv>

namespace spc::tool {
namespace {

constexpr std::size_t kEnough = 16;

/// "07-12" or "7", with the zeros of its first number.
void add_range(std::vector<std::string>& nodes, std::string_view before, std::string_view range,
               std::string_view behind) {
  unsigned first = 0;
  const std::string_view begin = range.substr(0, range.find('-'));
  if (std::from_chars(begin.data(), begin.data() + begin.size(), first).ec != std::errc()) return;
  unsigned last = first;
  if (const std::size_t dash = range.find('-'); dash != std::string_view::npos) {
    std::from_chars(range.data() + dash + 1, range.data() + range.size(), last);
  }
  for (unsigned one = first; one <= last && nodes.size() < kEnough; ++one) {
    std::string digits = std::to_string(one);
    if (digits.size() < begin.size()) digits.insert(0, begin.size() - digits.size(), '0');
    nodes.push_back(std::string(before) + digits + std::string(behind));
  }
}

}  // namespace

std::vector<std::string> nodes_of_list(std::string_view list) {
  std::vector<std::string> nodes;
  while (!list.empty() && nodes.size() < kEnough) {
    const std::size_t open = list.find('['), comma = list.find(',');
    if (open == std::string_view::npos || comma < open) {
      nodes.emplace_back(list.substr(0, comma));
      list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
      continue;
    }
    const std::size_t close = list.find(']', open);
    if (close == std::string_view::npos) return nodes;
    const std::size_t end = std::min(list.find(',', close), list.size());
    const std::string_view behind = list.substr(close + 1, end - close - 1);
    if (behind.find('[') != std::string_view::npos) return nodes;  // several dimensions
    std::string_view ranges = list.substr(open + 1, close - open - 1);
    while (!ranges.empty()) {
      const std::size_t length = std::min(ranges.find(','), ranges.size());
      add_range(nodes, list.substr(0, open), ranges.substr(0, length), behind);
      ranges.remove_prefix(std::min(length + 1, ranges.size()));
    }
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return nodes;
}

}  // namespace spc::tool
