#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.hpp"
#include "base/json.hpp"
#include "base/text.hpp"
#include "doctor/node.hpp"

namespace spc {

// --- node list ---

namespace {

constexpr std::string_view kDecimal = "0123456789";
constexpr std::size_t kMostDigits = 9;

/// Adds the nodes of "07-12" or "7", padded with zeros to the width of the first number.
void add_range(std::vector<std::string>& nodes, std::string_view before, std::string_view range,
               std::string_view behind, std::size_t most) {
  unsigned first = 0;
  const std::string_view begin = range.substr(0, range.find('-'));
  if (std::from_chars(begin.data(), begin.data() + begin.size(), first).ec != std::errc()) return;
  unsigned last = first;
  if (const std::size_t dash = range.find('-'); dash != std::string_view::npos) {
    std::from_chars(range.data() + dash + 1, range.data() + range.size(), last);
  }
  for (unsigned one = first; one <= last && nodes.size() < most; ++one) {
    std::string digits = std::to_string(one);
    if (digits.size() < begin.size()) digits.insert(0, begin.size() - digits.size(), '0');
    nodes.push_back(std::string(before) + digits + std::string(behind));
  }
}

/// A node's name, split before the digits at its end.
struct NodeName {
  std::string_view prefix, digits;
  std::uint32_t number = 0;

  static NodeName parse(std::string_view name) {
    const std::size_t end = name.find_last_not_of(kDecimal) + 1;  // 0: digits only
    NodeName parsed{.prefix = name.substr(0, end), .digits = name.substr(end)};
    if (parsed.digits.size() > kMostDigits) return {.prefix = name, .digits = {}};
    read_number(parsed.digits, parsed.number);
    return parsed;
  }
  /// Returns whether a range that ends here expands to `next` as its next node.
  [[nodiscard]] bool precedes(const NodeName& next) const {
    const bool same_width = digits.size() == next.digits.size() ||
                            (!digits.starts_with('0') && !next.digits.starts_with('0'));
    return next.number == number + 1 && same_width;
  }
};

}  // namespace

std::vector<std::string> nodes_of_list(std::string_view list, std::size_t most) {
  std::vector<std::string> nodes;
  while (!list.empty() && nodes.size() < most) {
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
    // Several dimensions are not supported.
    if (behind.find('[') != std::string_view::npos) return nodes;
    std::string_view ranges = list.substr(open + 1, close - open - 1);
    while (!ranges.empty()) {
      const std::size_t length = std::min(ranges.find(','), ranges.size());
      add_range(nodes, list.substr(0, open), ranges.substr(0, length), behind, most);
      ranges.remove_prefix(std::min(length + 1, ranges.size()));
    }
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return nodes;
}

std::string list_of_nodes(const std::vector<std::string>& nodes) {
  std::map<std::string_view, std::vector<NodeName>> by_prefix;
  for (const std::string& node : nodes) {
    const NodeName name = NodeName::parse(node);
    by_prefix[name.prefix].push_back(name);
  }
  std::vector<std::string> parts;
  for (auto& [prefix, names] : by_prefix) {
    std::ranges::sort(
        names, {}, [](const NodeName& name) { return std::pair(name.number, name.digits.size()); });
    const auto same = [](const NodeName& a, const NodeName& b) { return a.digits == b.digits; };
    names.erase(std::unique(names.begin(), names.end(), same), names.end());
    std::vector<std::string> ranges;
    for (std::size_t first = 0, last = 0; first < names.size(); first = ++last) {
      while (last + 1 < names.size() && names[last].precedes(names[last + 1])) ++last;
      std::string range(names[first].digits);
      if (last > first) range += "-" + std::string(names[last].digits);
      ranges.push_back(std::move(range));
    }
    const bool is_one = ranges.size() == 1 && ranges[0].find('-') == std::string::npos;
    const std::string numbers = joined(ranges, ",");
    parts.push_back(is_one ? std::string(prefix) + numbers : formatted("{}[{}]", prefix, numbers));
  }
  return joined(parts, ",");
}

// --- checks of many nodes ---

namespace {

constexpr std::size_t kMostKinds = 3;

/// Returns the text with each size and percentage, which differ from node to node, replaced by #.
std::string without_sizes(std::string_view text) {
  std::string kept;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = std::min(text.find_first_of(kDecimal, at), text.size());
    const std::size_t end = std::min(text.find_first_not_of("0123456789.", begin), text.size());
    std::string_view unit = text.substr(end);
    if (unit.starts_with(' ')) unit.remove_prefix(1);
    unit = unit.substr(0, unit.find_first_not_of("kMGTPiB%"));
    const bool is_size = unit == "%" || (unit.ends_with('B') && unit.size() <= 3);
    kept += text.substr(at, begin - at);
    if (begin < end) kept += is_size ? "#" : text.substr(begin, end - begin);
    at = end;
    if (is_size) at = static_cast<std::size_t>(unit.end() - text.begin());
  }
  return kept;
}

/// Joins answers of one verdict if there are more than a reader compares.
void join_answers(MergedCheck& check, Finding::Verdict verdict) {
  const auto is_one = [&](const MergedAnswer& one) { return one.finding.verdict == verdict; };
  const auto kinds = std::ranges::count_if(check.answers, is_one);
  if (static_cast<std::size_t>(kinds) <= kMostKinds) return;
  auto first = std::ranges::find_if(check.answers, is_one);
  for (auto one = std::next(first); one != check.answers.end(); ++one) {
    if (is_one(*one)) first->nodes.insert(first->nodes.end(), one->nodes.begin(), one->nodes.end());
  }
  first->finding.detail += formatted("; {} kinds of answers", kinds);
  check.answers.erase(std::remove_if(std::next(first), check.answers.end(), is_one),
                      check.answers.end());
}

}  // namespace

std::vector<MergedCheck> merge_findings(const std::vector<NodeFinding>& findings) {
  std::vector<MergedCheck> checks;
  std::map<std::string, std::map<std::string, const Finding*>> by_check;
  for (const auto& [node, finding] : findings) {
    auto& nodes = by_check[finding.what];
    if (nodes.empty()) checks.push_back({.check = finding.what, .worst = {}, .answers = {}});
    const Finding*& known = nodes[node];  // several tasks of a node may answer
    if (known == nullptr || known->verdict < finding.verdict) known = &finding;
  }
  for (MergedCheck& check : checks) {
    std::map<std::string, std::size_t> kinds;
    for (const auto& [node, finding] : by_check[check.check]) {
      const std::string key = formatted("{} {} {}", static_cast<int>(finding->verdict),
                                        without_sizes(finding->detail), finding->cure);
      const auto [kind, is_new] = kinds.try_emplace(key, check.answers.size());
      if (is_new) check.answers.push_back({.nodes = {}, .finding = *finding});
      check.answers[kind->second].nodes.push_back(node);
      check.worst = std::max(check.worst, finding->verdict);
    }
    std::ranges::stable_sort(check.answers, std::ranges::greater{}, [](const MergedAnswer& one) {
      return std::pair(one.finding.verdict, one.nodes.size());
    });
    for (const auto verdict : {Finding::Verdict::ok, Finding::Verdict::warning})
      join_answers(check, verdict);
  }
  std::ranges::stable_sort(checks, std::ranges::greater{}, [](const MergedCheck& check) {
    return std::pair(check.worst, check.answers.size() > 1);
  });
  return checks;
}

const char* name_of(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::ok: return "ok";
    case Finding::Verdict::warning: return "warning";
    case Finding::Verdict::failed: return "failed";
  }
  return "";
}

std::string line_of(const std::string& node, const Finding& finding) {
  const Json object{{"node", node},
                    {"check", finding.what},
                    {"verdict", name_of(finding.verdict)},
                    {"detail", finding.detail},
                    {"cure", finding.cure}};
  return object.str(0, ' ', Json::Order::kept);
}

Result<std::optional<NodeFinding>> read_node_line(std::string_view line) {
  constexpr std::size_t kMostOfLine = 64 << 10;
  const std::size_t begin = line.find('{');
  if (begin == std::string_view::npos) return std::optional<NodeFinding>();
  line = trimmed(line.substr(begin));
  if (line.ends_with(',')) line.remove_suffix(1);
  const Json object =
      SPC_TRY(Json::parse(line, {.bytes = kMostOfLine, .values = 100, .kind = ErrorKind::invalid}));
  NodeFinding one;
  one.node = SPC_TRY(object.text("node")).value_or("");
  one.finding.what = SPC_TRY(object.text("check")).value_or("");
  const std::string verdict = SPC_TRY(object.text("verdict")).value_or("");
  one.finding.detail = SPC_TRY(object.text("detail")).value_or("");
  one.finding.cure = SPC_TRY(object.text("cure")).value_or("");
  bool is_known = false;
  for (const auto known :
       {Finding::Verdict::ok, Finding::Verdict::warning, Finding::Verdict::failed}) {
    if (verdict != name_of(known)) continue;
    one.finding.verdict = known;
    is_known = true;
  }
  if (!is_known || one.node.empty() || one.finding.what.empty())
    return Error(ErrorKind::invalid, "lacks node, check or verdict");
  return std::optional(std::move(one));
}

}  // namespace spc
