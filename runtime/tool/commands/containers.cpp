#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <tuple>

#include "base/format.hpp"
#include "base/json/json.hpp"
#include "tool/command.hpp"
#include "tool/containers/container_verbs.hpp"
#include "tool/containers/own_containers.hpp"
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
  Json object{{"name", one.name},         {"owner", user_name(one.uid)},
              {"uid", one.uid},           {"image", one.image},
              {"bytes", size.bytes},      {"bytes_complete", size.complete},
              {"last_used", one.used_at}, {"in_use", one.in_use}};
  if (!one.job.empty()) object["job"] = one.job;
  return object;
}

Json as_json(const RunningContainer& one) {
  return {{"name", one.name},   {"owner", user_name(::geteuid())},
          {"uid", ::geteuid()}, {"image", one.image},
          {"pid", one.pid},     {"in_use", true}};
}

Json as_json(const OwnContainer& one) {
  Json tasks = Json::array();
  for (const pid_t task : one.tasks) tasks.push_back(task);
  Json object{{"name", one.name},
              {"owner", user_name(::geteuid())},
              {"uid", ::geteuid()},
              {"image", one.image},
              {"digest", one.digest},
              {"node", one.node},
              {"named", one.has_name},
              {"tasks", tasks},
              {"in_use", !one.tasks.empty()}};
  if (!one.job.empty()) object["job"] = one.job;
  if (one.made_at != 0) object["made"] = one.made_at;
  return object;
}

std::vector<std::string> as_row(const OwnContainer& one) {
  const std::int64_t age = std::max<std::int64_t>(0, std::time(nullptr) - one.made_at);
  const std::string known = one.made_at == 0 ? "-" : "made " + human_age(age);
  return {printable(one.name),
          printable(user_name(::geteuid())),
          printable(one.image),
          "-",
          one.tasks.empty() ? known : "in use",
          "node " + printable(one.node) + (one.job.empty() ? "" : ", job " + printable(one.job))};
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
  return {printable(one.name),
          printable(user_name(::geteuid())),
          printable(one.image),
          "-",
          "in use",
          formatted("process {}", one.pid)};
}

}  // namespace

namespace {

void print_list(const Arguments& arguments, const Json& list,
                const std::vector<std::vector<std::string>>& table) {
  if (arguments.has("json")) {
    std::puts(list.str(2).c_str());
  } else {
    print_table(table);
  }
}

bool is_meant(const Arguments& arguments, const std::string& name, const std::string& node = {}) {
  const std::string wanted = arguments.value("node");
  if (!wanted.empty() && node != wanted) return false;
  return arguments.words.size() < 2 || std::find(arguments.words.begin() + 1, arguments.words.end(),
                                                 name) != arguments.words.end();
}

/// Those of --container-name: of all users for root, who alone can look into the store, of the
/// caller as the home has them noted; and the caller's own of `scontainer run`.
Result<int> list_containers_of(const Arguments& arguments) {
  std::vector<StoredContainer> stored;
  if (::geteuid() == 0) stored = SPC_TRY(stored_containers());
  const auto order = [](const StoredContainer& one) {
    return std::tie(one.uid, one.name, one.key);
  };
  std::ranges::sort(stored, [&](const auto& a, const auto& b) { return order(a) < order(b); });
  const auto places = SPC_TRY(Places::find());
  const auto running = SPC_TRY(running_containers(places.running));
  Json all = Json::array();
  std::vector<std::vector<std::string>> table{{"NAME", "OWNER", "IMAGE", "SIZE", "LAST USE", "OF"}};
  for (const StoredContainer& one : stored) {
    if (!is_meant(arguments, one.name) && !is_meant(arguments, user_name(one.uid) + "/" + one.name))
      continue;
    const ContainerSize size = size_of(one);
    all.push_back(as_json(one, size));
    table.push_back(as_row(one, size));
  }
  for (const OwnContainer& one :
       ::geteuid() == 0 ? std::vector<OwnContainer>() : own_containers()) {
    if (!is_meant(arguments, one.name, one.node)) continue;
    all.push_back(as_json(one));
    table.push_back(as_row(one));
  }
  for (const RunningContainer& one : running) {
    if (!is_meant(arguments, one.name)) continue;
    all.push_back(as_json(one));
    table.push_back(as_row(one));
  }
  if (arguments.words.size() > 1 && table.size() == 1) {
    return Error(ErrorKind::not_found, "no container " + in_quotes(arguments.words[1]))
        .hint("scontainer containers lists them");
  }
  print_list(arguments, all, table);
  return 0;
}

Result<int> remove_all(const Arguments& arguments) {
  for (auto name = arguments.words.begin() + 1; name != arguments.words.end(); ++name) {
    const int status = SPC_TRY(remove_named(
        {*name, arguments.value("node"), arguments.value("job"), arguments.has("force")}));
    if (status != 0) return status;
  }
  return 0;
}

/// As an absolute path: the step may have another work directory.
Result<int> write_to_file(const Arguments& arguments) {
  if (arguments.words.size() != 3)
    return Error(ErrorKind::invalid, "export: NAME and FILE required");
  const auto file = SPC_TRY(absolute_path(arguments.words[2]));
  return export_named(
      {arguments.words[1], arguments.value("node"), arguments.value("job"), arguments.has("force")},
      file);
}

}  // namespace

Result<int> run_containers(const Arguments& arguments) {
  const std::string verb = arguments.words.empty() ? "list" : arguments.words[0];
  if (verb == "list") return list_containers_of(arguments);
  if (arguments.words.size() < 2)
    return Error(ErrorKind::invalid, formatted("{}: name of a container required", verb));
  if (verb == "inspect") {
    Arguments of_one = arguments;
    of_one.options["json"];
    return list_containers_of(of_one);
  }
  if (verb == "rm") return remove_all(arguments);
  if (verb == "export") return write_to_file(arguments);
  return Error(ErrorKind::invalid, formatted("unknown word {}", in_quotes(verb)))
      .hint("list, inspect, rm or export");
}

}  // namespace spc::tool
