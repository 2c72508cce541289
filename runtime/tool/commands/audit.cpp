#include <cstdio>

#include "base/format.hpp"
#include "base/json/json.hpp"
#include "tool/command.hpp"
#include "tool/metrics/log_records.hpp"

namespace spc::tool {
namespace {

/// Bytes that are not UTF-8 become U+FFFD; what was escaped in the log stays so.
Json as_json(const LogRecord& record) {
  constexpr const char* kEvents[] = {"start", "failed", "pull"};
  Json object{{"time", record.time}, {"event", kEvents[static_cast<std::size_t>(record.event)]},
              {"job", record.job},   {"step", record.step},
              {"node", record.node}, {"image", record.image}};
  if (record.event == LogRecord::Event::failed) {
    object["kind"] = record.kind;
    return object;
  }
  if (record.event == LogRecord::Event::pull) {
    object["digest"] = record.digest;
    for (std::size_t i = 0; i < kPullNumbers.size(); ++i) object[kPullNumbers[i]] = record.pull[i];
    object["pull_ms"] = static_cast<double>(record.tenths[0]) / 10;
    return object;
  }
  object["uid"] = record.uid;
  object["user"] = record.user;
  object["digest"] = record.digest == "-" ? Json() : Json(record.digest);
  object["from"] = record.from;
  object["layers"] = record.layers;
  object["shared"] = record.shared;
  object["fuse"] = record.by_fuse;
  object["pulled"] = record.pulled;
  for (std::size_t i = 0; i < record.tenths.size(); ++i) {
    object[formatted("{}_ms", kStartPhases[i])] = static_cast<double>(record.tenths[i]) / 10;
  }
  return object;
}

}  // namespace

Result<int> run_audit(const Arguments& arguments) {
  for (const std::string& path : arguments.words) {
    SPC_TRY(for_each_log_line(path, [](std::string_view line) {
      if (const auto record = read_log_record(line))
        std::puts(as_json(*record).str(0, ' ', Json::Order::kept).c_str());
    }));
  }
  return 0;
}

}  // namespace spc::tool
