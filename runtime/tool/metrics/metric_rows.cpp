#include "tool/metrics/metric_rows.hpp"

#include "base/format.hpp"
#include "base/text.hpp"

namespace spc::tool {

std::string sample(std::string_view name, std::string_view labels, std::string_view value) {
  return labels.empty() ? formatted("{} {}\n", name, value)
                        : formatted("{}{{{}}} {}\n", name, labels, value);
}

std::string sample(std::string_view name, std::uint64_t value) {
  return sample(name, "", std::to_string(value));
}

std::string metrics_text(const std::string& samples) {
  std::string text;
  for (const MetricRow& row : kMetricRows) {
    std::string own;
    for (const std::string_view line : split(samples, '\n')) {
      if (line.substr(0, line.find_first_of("{ ")) == row.name) own += std::string(line) + "\n";
    }
    if (!own.empty())
      text +=
          formatted("# HELP {} {}\n# TYPE {} {}\n", row.name, row.help, row.name, row.type) + own;
  }
  return text;
}

}  // namespace spc::tool
