#include "launch/inside/task_edits.hpp"

#include <algorithm>
#include <charconv>

namespace spc {
namespace {

void add_records(std::string& records, std::string_view key, std::string_view value) {
  records.append(key).append("=").append(value) += '\0';
}

void add_pairs(std::string& records, std::string_view key, const std::map<std::string, std::string>& pairs) {
  for (const auto& [name, value] : pairs) add_records(records, key, name + "=" + value);
}

}  // namespace

std::string TaskEdits::serialize() const {
  std::string records;
  for (const std::string& name : off) add_records(records, "off", name);
  for (const auto& [hook, edits] : of_hooks) {
    add_records(records, "hook", hook);
    for (const std::string& name : edits.environment.unset) add_records(records, "unset", name);
    add_pairs(records, "set", edits.environment.set);
    add_pairs(records, "prepend", edits.environment.prepend);
    add_pairs(records, "default", edits.environment.defaults);
    for (const LimitEdit& limit : edits.limits) add_records(records, "limit", limit.name + "=" + std::to_string(limit.soft));
    for (const std::string& note : edits.notes) add_records(records, "note", note);
    for (const std::string& warning : edits.warnings) add_records(records, "warning", warning);
  }
  for (const auto& [hook, microseconds] : took) {
    add_records(records, "hook", hook);
    add_records(records, "took", std::to_string(microseconds));
  }
  return records;
}

TaskEdits TaskEdits::parse(std::string_view records) {
  TaskEdits task;
  while (!records.empty()) {
    const std::string_view record = records.substr(0, records.find('\0'));
    records.remove_prefix(std::min(record.size() + 1, records.size()));
    const auto equals = std::min(record.find('='), record.size());
    const std::string_view key = record.substr(0, equals);
    const std::string value(record.substr(std::min(equals + 1, record.size())));
    if (key == "off") task.off.push_back(value);
    if (key == "hook") task.of_hooks.push_back({value, {}});
    if (task.of_hooks.empty()) continue;
    Edits& edits = task.of_hooks.back().second;
    if (key == "unset") edits.environment.unset.insert(value);
    if (key == "note") edits.notes.push_back(value);
    if (key == "warning") edits.warnings.push_back(value);
    if (key == "took") std::from_chars(value.data(), value.data() + value.size(), task.took[task.of_hooks.back().first]);
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
