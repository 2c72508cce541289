#include "image/export/enroot_files.hpp"

#include "base/format.hpp"
#include "base/text.hpp"
#include "image/registry/json.hpp"
#include "image/store/record.hpp"

namespace spc {
namespace {

std::string rc_of(const std::string& settings) {
  std::string workdir = "/";
  for (const auto& value : setting_values(settings, "workdir")) workdir = value;
  const auto entrypoint = setting_values(settings, "entrypoint");
  const auto command = setting_values(settings, "cmd");
  const bool runs_something = !entrypoint.empty() || !command.empty();
  return formatted(
      "mkdir -p {0} 2> /dev/null\ncd {0} && unset OLDPWD || exit 1\n\n"
      "if [ -s /etc/rc.local ]; then\n    . /etc/rc.local\nfi\n\n"
      "if [ $# -gt 0 ]; then\n    exec{1} \"$@\"\nelse\n    exec{2}\nfi\n",
      for_shell(workdir), words_for_shell(entrypoint),
      runs_something ? words_for_shell(entrypoint) + words_for_shell(command)
                     : std::string(" /bin/sh"));
}

std::string environment_of(const std::string& settings) {
  std::string text;
  for (const auto& variable : setting_values(settings, "env")) {
    if (variable.find('\n') == std::string::npos) text += variable + "\n";
  }
  return text;
}

/// Volumes of the image: directories that shall be there and can be written to.
std::string fstab_of(const std::string& config) {
  std::string text;
  const auto document = parse_json_object(config, "the image's configuration");
  const Json* run = document ? document->find("config") : nullptr;
  const Json* volumes = run != nullptr && run->is_object() ? run->find("Volumes") : nullptr;
  if (volumes == nullptr || !volumes->is_object()) return text;
  for (const auto& [path, unused] : volumes->members()) {
    if (path.find_first_of(" \t\n") != std::string::npos) continue;
    text += "${ENROOT_ROOTFS}" + path + " " + path + " none x-create=dir,bind,rw,nosuid,nodev\n";
  }
  return text;
}

}  // namespace

std::vector<AddedFile> enroot_files(const std::string& settings, const std::string& config) {
  return {{.path = "etc/rc", .text = rc_of(settings), .mode = 0755},
          {.path = "etc/environment", .text = environment_of(settings), .mode = 0644},
          {.path = "etc/fstab", .text = fstab_of(config), .mode = 0644}};
}

}  // namespace spc
