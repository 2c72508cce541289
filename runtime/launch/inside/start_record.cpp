#include "launch/inside/start_record.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>

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

const char* name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid: return "invalid";
    case ErrorKind::not_found: return "not_found";
    case ErrorKind::refused: return "refused";
    case ErrorKind::unavailable: return "unavailable";
    case ErrorKind::no_space: return "no_space";
    case ErrorKind::corrupt: return "corrupt";
    case ErrorKind::system: return "system";
    case ErrorKind::internal: return "internal";
  }
  return "internal";
}

/// Where it was, as Slurm's variables say.
std::string place_of(const std::map<std::string, std::string>& job) {
  const auto variable = [&](const char* name) {
    const auto found = job.find(name);
    return found == job.end() || found->second.empty() ? std::string("-")
                                                       : printable(found->second);
  };
  return formatted("job={} step={} node={}", variable("SLURM_JOB_ID"), variable("SLURM_STEP_ID"),
                   variable("SLURMD_NODENAME"));
}

}  // namespace

void tell_image(const std::string& image, ContainerSpec& spec) {
  spec.environment.erase(
      "SCONTAINER_IMAGE_NAME");  // of a container that this one was started from, as the digest
  if (!image.empty()) spec.environment["SCONTAINER_IMAGE_NAME"] = {image, Origin::container};
  spec.environment.erase("SCONTAINER_IMAGE_DIGEST");
  if (spec.manifest)
    spec.environment["SCONTAINER_IMAGE_DIGEST"] = {spec.manifest->str(), Origin::container};
}

void tell_name(const std::optional<ContainerName>& name, ContainerSpec& spec) {
  spec.environment.erase("SCONTAINER_CONTAINER_NAME");
  if (name && !name->step_key())
    spec.environment["SCONTAINER_CONTAINER_NAME"] = {name->text, Origin::container};
}

void tell_prompt(ContainerSpec& spec) {
  if (::isatty(STDIN_FILENO) == 0) return;
  const auto name = spec.environment.find("SCONTAINER_CONTAINER_NAME");
  const std::string short_name = spec.image.substr(0, spec.image.find('@'));
  std::string where = name != spec.environment.end() ? name->second.value
                                                     : short_name.substr(short_name.rfind('/') + 1);
  std::replace_if(
      where.begin(), where.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && std::strchr("._:+-", c) == nullptr; },
      '_');
  spec.environment.try_emplace("debian_chroot", Variable{where, Origin::container});
  spec.environment.try_emplace("PS1", Variable{where + ":\\w\\$ ", Origin::container});
}

std::string start_record(const std::string& image, const UserIdentity& user,
                         const ContainerSpec& spec, const TaskMessage& ready, bool pulled,
                         std::uint64_t microseconds,
                         const std::map<std::string, std::string>& job) {
  const auto ms = [&](Phase phase) {
    return milliseconds(ready.times[static_cast<std::size_t>(phase)]);
  };
  return formatted(
      "start {} uid={} user={} image={} digest={} from={} layers={} shared={} fuse={} pulled={} "
      "import_ms={} "
      "sources_ms={} layers_ms={} overlay_ms={} pivot_ms={} root_ms={} start_ms={}",
      place_of(job), user.uid, user.name.empty() ? "-" : printable(user.name), in_quotes(image),
      spec.manifest ? spec.manifest->str() : "-", name_of(spec.from), ready.layers,
      ready.layers_shared, ready.layers_served, pulled ? 1 : 0, ms(Phase::import),
      ms(Phase::sources), ms(Phase::layers), ms(Phase::overlay), ms(Phase::pivot),
      ms(Phase::root_setup), milliseconds(microseconds));
}

std::string failure_record(const std::string& image, ErrorKind kind,
                           const std::map<std::string, std::string>& job) {
  return formatted("failed {} image={} kind={}", place_of(job), in_quotes(image), name_of(kind));
}

std::string pull_record(const std::string& image, std::string_view said,
                        const std::map<std::string, std::string>& job) {
  return formatted("pull {} image={} {}", place_of(job), in_quotes(image), printable(said));
}

std::string timing_line(const TaskMessage& ready, std::uint64_t microseconds,
                        std::uint64_t entrypoint) {
  const auto ms = [&](Phase phase) {
    return ready.times[static_cast<std::size_t>(phase)] / 1000.0;
  };
  char line[400];
  std::snprintf(line, sizeof line,
                "start %.2f ms: image %.2f, sources %.2f, %u layers (%u shared, %u by FUSE) %.2f, "
                "overlay %.2f, pivot %.2f, root file system %.2f",
                static_cast<double>(microseconds) / 1000.0, ms(Phase::import), ms(Phase::sources),
                ready.layers, ready.layers_shared, ready.layers_served, ms(Phase::layers),
                ms(Phase::overlay), ms(Phase::pivot), ms(Phase::root_setup));
  if (entrypoint == 0) return line;
  return line + (", entrypoint " + std::to_string(entrypoint / 1000));
}

}  // namespace spc
