#include "launch/inside/task_edits.hpp"

#include <algorithm>
#include <charconv>

#include "base/records.hpp"

namespace spc {
namespace {

void add_pairs(std::string& records, std::string_view key,
               const std::map<std::string, std::string>& pairs) {
  for (const auto& [name, value] : pairs) add_record(records, key, name + "=" + value);
}

}  // namespace

std::string TaskEdits::serialize() const {
  std::string records;
  for (const std::string& name : off) add_record(records, "off", name);
  for (const auto& [hook, edits] : of_hooks) {
    add_record(records, "hook", hook);
    for (const std::string& name : edits.environment.unset) add_record(records, "unset", name);
    add_pairs(records, "set", edits.environment.set);
    add_pairs(records, "prepend", edits.environment.prepend);
    add_pairs(records, "default", edits.environment.defaults);
    for (const LimitEdit& limit : edits.limits)
      add_record(records, "limit", limit.name + "=" + std::to_string(limit.soft));
    for (const std::string& note : edits.notes) add_record(records, "note", note);
    for (const std::string& warning : edits.warnings) add_record(records, "warning", warning);
  }
  for (const auto& [hook, microseconds] : took) {
    add_record(records, "hook", hook);
    add_record(records, "took", std::to_string(microseconds));
  }
  return records;
}

TaskEdits TaskEdits::parse(std::string_view records) {
  TaskEdits task;
  for (Records record(records); record.next();) {
    const std::string_view key = record.key();
    const std::string value(record.value());
    if (key == "off") task.off.push_back(value);
    if (key == "hook") task.of_hooks.push_back({value, {}});
    if (task.of_hooks.empty()) continue;
    Edits& edits = task.of_hooks.back().second;
    if (key == "unset") edits.environment.unset.insert(value);
    if (key == "note") edits.notes.push_back(value);
    if (key == "warning") edits.warnings.push_back(value);
    if (key == "took")
      std::from_chars(value.data(), value.data() + value.size(),
                      task.took[task.of_hooks.back().first]);
    const auto inner = value.find('=');
    if (inner == std::string::npos) continue;
    const std::string name = value.substr(0, inner);
    const std::string rest = value.substr(inner + 1);
    if (key == "set") edits.environment.set[name] = rest;
    if (key == "prepend") edits.environment.prepend[name] = rest;
    if (key == "default") edits.environment.defaults[name] = rest;
    if (key == "limit") {
      std::uint64_t soft = 0;
      std::from_chars(rest.data(), rest.data() + rest.size(), soft);
      edits.limits.push_back({name, soft});
    }
  }
  return task;
}

}  // namespace spc
