#include "launch/inside/start_record.hpp"

#include <cstdio>

#include "base/error.hpp"
#include "base/format.hpp"

namespace spc {
namespace {

std::string milliseconds(std::uint64_t microseconds) {
  char text[40];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(microseconds) / 1000.0);
  return text;
}

const char* name_of(ContainerSpec::From from) {
  switch (from) {
    case ContainerSpec::From::store: return "store";
    case ContainerSpec::From::file: return "file";
    case ContainerSpec::From::directory: return "directory";
  }
  return "-";
}

}  // namespace

void tell_image(const std::string& image, ContainerSpec& spec) {
  spec.environment.erase("SCONTAINER_IMAGE_NAME");  // of a container that this one was started from, as the digest
  if (!image.empty()) spec.environment["SCONTAINER_IMAGE_NAME"] = {image, Origin::container};
  spec.environment.erase("SCONTAINER_IMAGE_DIGEST");
  if (spec.manifest) spec.environment["SCONTAINER_IMAGE_DIGEST"] = {spec.manifest->str(), Origin::container};
}

std::string start_record(const std::string& image, const UserIdentity& user, const ContainerSpec& spec, const TaskMessage& ready,
                         std::uint64_t microseconds, const std::map<std::string, std::string>& job) {
  const auto variable = [&](const char* name) {
    const auto found = job.find(name);
    return found == job.end() || found->second.empty() ? std::string("-") : printable(found->second);
  };
  return formatted(
      "start job={} step={} node={} uid={} user={} image={} digest={} from={} layers={} shared={} "
      "fuse={} import_ms={} start_ms={}",
      variable("SLURM_JOB_ID"), variable("SLURM_STEP_ID"), variable("SLURMD_NODENAME"), user.uid,
      user.name.empty() ? "-" : printable(user.name), in_quotes(image),
      spec.manifest ? spec.manifest->str() : "-", name_of(spec.from), ready.layers,
      ready.layers_shared, ready.layers_served,
      milliseconds(ready.times[static_cast<std::size_t>(Phase::import)]),
      milliseconds(microseconds));
}

std::string timing_line(const TaskMessage& ready, std::uint64_t microseconds, std::uint64_t entrypoint) {
  const auto ms = [&](Phase phase) { return ready.times[static_cast<std::size_t>(phase)] / 1000.0; };
  char line[400];
  std::snprintf(
      line, sizeof line,
      "start %.2f ms: image %.2f, sources %.2f, %u layers (%u shared, %u by FUSE) %.2f, overlay %.2f, pivot %.2f, root file system %.2f",
      static_cast<double>(microseconds) / 1000.0, ms(Phase::import), ms(Phase::sources), ready.layers, ready.layers_shared,
      ready.layers_served, ms(Phase::layers), ms(Phase::overlay), ms(Phase::pivot), ms(Phase::root_setup));
  if (entrypoint == 0) return line;
  return line + (", entrypoint " + std::to_string(entrypoint / 1000));
}

}  // namespace spc
