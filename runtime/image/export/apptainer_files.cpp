#include "image/export/apptainer_files.hpp"

#include "base/format.hpp"
#include "base/text.hpp"
#include "image/registry/json.hpp"
#include "image/store/record.hpp"

namespace spc {
namespace {

std::string environment_script(const std::string& settings) {
  std::string text = "#!/bin/sh\n";
  for (const auto& variable : setting_values(settings, "env")) {
    const auto end = variable.find('=');
    if (end == std::string::npos || variable.find('\n') != std::string::npos) continue;
    text +=
        formatted("export {}={}\n", variable.substr(0, end), for_shell(variable.substr(end + 1)));
  }
  return text;
}

std::string runscript_of(const std::string& settings) {
  const auto entrypoint = setting_values(settings, "entrypoint");
  const auto command = setting_values(settings, "cmd");
  std::string enter;
  for (const auto& directory : setting_values(settings, "workdir"))
    enter = formatted("cd {} || exit 1\n", for_shell(directory));
  const bool runs_something = !entrypoint.empty() || !command.empty();
  return formatted(
      "#!/bin/sh\n{0}if [ $# -gt 0 ]; then\n    exec{1} \"$@\"\nelse\n    exec{2}\nfi\n", enter,
      words_for_shell(entrypoint),
      runs_something ? words_for_shell(entrypoint) + words_for_shell(command)
                     : std::string(" /bin/sh"));
}

std::string labels_of(const std::string& config) {
  const auto document = parse_json_object(config, "the image's configuration");
  const Json* run = document ? document->find("config") : nullptr;
  const Json* labels = run != nullptr && run->is_object() ? run->find("Labels") : nullptr;
  return (labels != nullptr && labels->is_object() ? labels->str() : "{}") + "\n";
}

}  // namespace

std::vector<AddedFile> apptainer_files(const std::string& settings, const std::string& config) {
  return {{.path = ".singularity.d/env/10-docker2singularity.sh",
           .text = environment_script(settings),
           .mode = 0755},
          {.path = ".singularity.d/labels.json", .text = labels_of(config), .mode = 0644},
          {.path = ".singularity.d/runscript", .text = runscript_of(settings), .mode = 0755}};
}

}  // namespace spc
