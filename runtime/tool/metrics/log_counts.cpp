#include "tool/metrics/log_counts.hpp"

#include <cstdio>

#include "base/format.hpp"
#include "tool/metrics/metric_rows.hpp"

namespace spc::tool {

void LogCounts::add(const LogRecord& record) {
  for (std::size_t i = 0; i < failures_.size(); ++i)
    failures_[i] += record.kind == kFailureKinds[i] ? 1 : 0;
  if (record.event != LogRecord::Event::start) return;
  ++starts_;
  by_fuse_ += record.by_fuse > 0 ? 1 : 0;
  pulls_ += record.pulled ? 1 : 0;
  for (std::size_t i = 0; i < tenths_.size(); ++i) tenths_[i] += record.tenths[i];
}

std::string LogCounts::samples() const {
  std::string text = sample("spank_container_starts_total", starts_) +
                     sample("spank_container_fuse_starts_total", by_fuse_) +
                     sample("spank_container_pulls_total", pulls_);
  for (std::size_t i = 0; i < failures_.size(); ++i) {
    text += sample("spank_container_failures_total", formatted("kind=\"{}\"", kFailureKinds[i]),
                   std::to_string(failures_[i]));
  }
  for (std::size_t i = 0; i < tenths_.size(); ++i) {
    char fraction[8];
    std::snprintf(fraction, sizeof fraction, "%04u", static_cast<unsigned>(tenths_[i] % 10'000));
    text +=
        sample("spank_container_start_seconds_total", formatted("phase=\"{}\"", kStartPhases[i]),
               formatted("{}.{}", tenths_[i] / 10'000, fraction));
  }
  return text;
}

Result<LogCounts> count_log(const std::string& path) {
  LogCounts counts;
  SPC_TRY(for_each_log_line(path, [&](std::string_view line) {
    if (const auto record = read_log_record(line)) counts.add(*record);
  }));
  return counts;
}

}  // namespace spc::tool
