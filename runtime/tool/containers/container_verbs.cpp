#include "tool/containers/container_verbs.hpp"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

#include "base/format.hpp"
#include "base/process/child.hpp"
#include "tool/containers/own_containers.hpp"
#include "tool/containers/stored_containers.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

/// Where a container of the caller's is, so that a step can get at it.
struct Place {
  std::string name, node, job;
};

Error ambiguous(const std::string& name, const std::string& places) {
  return Error(ErrorKind::invalid, formatted("several containers {}: {}", in_quotes(name), places));
}

/// What nobody has noted may be on this node nevertheless, if it is one of Slurm's.
Result<Place> place_of(const ContainerMeant& meant) {
  std::vector<OwnContainer> found;
  std::string places;
  for (OwnContainer& one : own_containers()) {
    const bool elsewhere = (!meant.node.empty() && one.node != meant.node) ||
                           (!meant.job.empty() && one.job != meant.job);
    if (one.name != meant.name || !one.has_name || elsewhere) continue;
    if (meant.node.empty() && one.node == this_node() && one.job == meant.job)
      return Place{one.name, one.node, one.job};
    places +=
        (places.empty() ? "" : ", ") + one.node + (one.job.empty() ? "" : " of job " + one.job);
    found.push_back(std::move(one));
  }
  if (found.size() > 1)
    return ambiguous(meant.name, places).hint("choose one with --node=NODE or --job=JOB");
  if (found.size() == 1) return Place{found.front().name, found.front().node, found.front().job};
  if (!meant.node.empty()) return Place{meant.name, meant.node, meant.job};
  if (std::getenv("SLURMD_NODENAME") != nullptr) return Place{meant.name, this_node(), {}};
  return Error(ErrorKind::not_found, "no container " + in_quotes(meant.name))
      .hint("scontainer containers lists them");
}

/// NAME, USER/NAME or UID/NAME.
bool is_meant(const StoredContainer& one, const std::string& text) {
  const auto slash = text.find('/');
  if (slash == std::string::npos) return one.name == text;
  const std::string user = text.substr(0, slash);
  const passwd* entry = ::getpwuid(one.uid);
  return one.name == text.substr(slash + 1) &&
         (user == std::to_string(one.uid) || (entry != nullptr && user == entry->pw_name));
}

Result<StoredContainer> stored_container(const ContainerMeant& meant) {
  std::vector<StoredContainer> found;
  std::string places;
  for (StoredContainer& one : SPC_TRY(stored_containers())) {
    if (!is_meant(one, meant.name)) continue;
    places += formatted("{}{}/{}", places.empty() ? "" : ", ", one.uid, one.name);
    found.push_back(std::move(one));
  }
  if (found.empty())
    return Error(ErrorKind::not_found, "no container " + in_quotes(meant.name))
        .hint("scontainer containers lists them");
  if (found.size() > 1) return ambiguous(meant.name, places).hint("choose one with USER/NAME");
  return std::move(found.front());
}

Result<int> remove_stored(const ContainerMeant& meant) {
  const auto container = SPC_TRY(stored_container(meant));
  if (container.in_use && !meant.force) {
    return Error(ErrorKind::refused,
                 formatted("remove container {}: it is in use", in_quotes(meant.name)))
        .hint("--force removes it when its last step has ended");
  }
  if (!SPC_TRY(remove_container(container, meant.force))) {
    return Error(ErrorKind::unavailable, formatted("remove container {}: somebody has just used it",
                                                   in_quotes(meant.name)));
  }
  SPC_TRY(remove_files_of(container.uid));
  return 0;
}

/// Whoever runs the step writes the file: the container's user, also for root.
StepOrder order_of_export(const Place& place, const std::string& file) {
  return {.node = place.node,
          .job = place.job,
          .options = {"--container-name=" + place.name, "--container-save=" + file,
                      "--no-container-entrypoint"},
          .command = {"true"}};
}

}  // namespace

Result<int> remove_named(const ContainerMeant& meant) {
  if (::geteuid() == 0) return remove_stored(meant);
  const auto place = SPC_TRY(place_of(meant));
  return run_step({.node = place.node,
                   .job = place.job,
                   .options = {"--container-name=" + place.name + ":remove"},
                   .command = {"true"}});
}

Result<int> export_named(const ContainerMeant& meant, const std::string& file) {
  if (!meant.force && ::access(file.c_str(), F_OK) == 0) {
    return Error(ErrorKind::invalid, formatted("export to {}: it exists", in_quotes(file)))
        .hint("--force replaces it");
  }
  if (::geteuid() != 0) return run_step(order_of_export(SPC_TRY(place_of(meant)), file));
  const auto container = SPC_TRY(stored_container(meant));
  return run_step_as(container.uid,
                     order_of_export({container.name, this_node(), container.job}, file));
}

}  // namespace spc::tool
