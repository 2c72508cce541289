#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <tuple>

#include "base/format.hpp"
#include "base/json/json.hpp"
#include "tool/command.hpp"
#include "tool/containers/running.hpp"
#include "tool/containers/stored_containers.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

std::string user_name(uid_t uid) {
  const passwd* entry = ::getpwuid(uid);
  return entry != nullptr ? entry->pw_name : std::to_string(uid);
}

Json as_json(const StoredContainer& one, const ContainerSize& size) {
  Json object{{"name", one.name},
              {"owner", user_name(one.uid)},
              {"uid", one.uid},
              {"image", one.image},
              {"bytes", size.bytes},
              {"bytes_complete", size.complete},
              {"last_used", one.used_at},
              {"in_use", one.in_use}};
  if (!one.job.empty()) object["job"] = one.job;
  return object;
}

Json as_json(const RunningContainer& one) {
  return {{"name", one.name},   {"owner", user_name(::geteuid())}, {"uid", ::geteuid()},
          {"image", one.image}, {"pid", one.pid},                  {"in_use", true}};
}

std::vector<std::string> as_row(const StoredContainer& one, const ContainerSize& size) {
  const std::int64_t age = std::max<std::int64_t>(0, std::time(nullptr) - one.used_at);
  return {printable(one.name),
          printable(user_name(one.uid)),
          printable(one.image),
          (size.complete ? "" : "> ") + human_bytes(size.bytes),
          one.in_use ? "in use" : human_age(age),
          one.job.empty() ? "-" : "job " + printable(one.job)};
}

std::vector<std::string> as_row(const RunningContainer& one) {
  return {printable(one.name), printable(user_name(::geteuid())), printable(one.image), "-", "in use",
          formatted("process {}", one.pid)};
}

}  // namespace

/// Those of --container-name, which only root can look into, and the caller's own of `scontainer run`.
Result<int> run_containers(const Arguments& arguments) {
  std::vector<StoredContainer> stored;
  if (::geteuid() == 0) stored = SPC_TRY(stored_containers());
  const auto order = [](const StoredContainer& one) { return std::tie(one.uid, one.name, one.key); };
  std::ranges::sort(stored, [&](const auto& a, const auto& b) { return order(a) < order(b); });
  const auto places = SPC_TRY(Places::find());
  const auto running = SPC_TRY(running_containers(places.running));
  Json list = Json::array();
  std::vector<std::vector<std::string>> table{{"NAME", "OWNER", "IMAGE", "SIZE", "LAST USE", "OF"}};
  for (const StoredContainer& one : stored) {
    const ContainerSize size = size_of(one);
    list.push_back(as_json(one, size));
    table.push_back(as_row(one, size));
  }
  for (const RunningContainer& one : running) {
    list.push_back(as_json(one));
    table.push_back(as_row(one));
  }
  if (arguments.has("json")) {
    std::puts(list.str(2).c_str());
  } else {
    print_table(table);
  }
  return 0;
}

}  // namespace spc::tool
