#include "launch/spec/environment.hpp"

#include <algorithm>

#include "base/records.hpp"
#include "base/text.hpp"

namespace spc {

ImageSettings ImageSettings::parse(std::string_view records) {
  ImageSettings settings;
  for (Records record(records); record.next();) {
    const std::string_view key = record.key();
    const std::string_view value = record.value();
    if (key == "env") settings.environment.emplace_back(value);
    if (key == "workdir") settings.workdir = value;
    if (key == "settings") settings.in_files = value == "files";
    if (key == "entrypoint") settings.entrypoint.emplace_back(value);
    if (key == "cmd") settings.command.emplace_back(value);
    if (key == "user") settings.user = value;
    if (key == "manifest") settings.manifest = value;
    if (key == "fact" && !value.ends_with('=')) settings.facts.emplace_back(value);
    if (key == "volume") settings.volumes.emplace_back(value);
    if (key == "port") settings.ports.emplace_back(value);
  }
  return settings;
}

std::vector<std::string> ImageSettings::after_scripts(std::vector<std::string> program,
                                                      const std::map<std::string, std::string>& kept) const {
  if (environment_scripts.empty()) return program;
  std::string text;
  for (const std::string& script : environment_scripts) text += ". " + for_shell(script) + "; ";
  for (const auto& [name, value] : kept) {
    if (is_shell_name(name)) text += "export " + name + "=" + for_shell(value) + "; ";  // no script has changed others
  }
  text += "exec \"$@\"";
  program.insert(program.begin(), {"/bin/sh", "-c", text, "sh"});
  return program;
}

const char* name_of(Origin origin) {
  switch (origin) {
    case Origin::job: return "job";
    case Origin::slurm: return "slurm";
    case Origin::login: return "login";
    case Origin::image: return "image";
    case Origin::site: return "site";
    case Origin::kept: return "job, kept";
    case Origin::option: return "--container-env";
    case Origin::hook: return "hook";
    case Origin::entrypoint: return "entrypoint";
    case Origin::container: return "container";
  }
  return "";
}

Environment merge_environment(const std::map<std::string, std::string>& job, const ImageSettings& image,
                              const EnvironmentWishes& site, const EnvironmentWishes& user_wishes, const UserIdentity& user,
                              std::string_view workdir) {
  Environment merged;
  for (const auto& [name, value] : job) {
    Origin origin = name.starts_with("SLURM_") ? Origin::slurm : Origin::job;
    if (user_wishes.keeps(name) || site.keeps(name)) origin = Origin::kept;
    merged[name] = {value, origin};
  }
  const auto kept = [&](const std::string& name) {
    const auto found = merged.find(name);
    return found != merged.end() && found->second.origin == Origin::kept;
  };
  const auto set = [&](const std::string& name, std::string value, Origin origin) {
    if (!kept(name)) merged[name] = {std::move(value), origin};
  };
  for (const char* name : {"LANG", "LANGUAGE", "LC_ALL"}) {
    if (!kept(name)) merged.erase(name);
  }

  // A login's defaults first, so that the image can override them.
  set("PATH", kDefaultPath, Origin::login);
  set("HOME", user.home, Origin::login);
  set("SHELL", user.shell, Origin::login);
  if (!user.name.empty()) {
    set("USER", user.name, Origin::login);
    set("LOGNAME", user.name, Origin::login);
  }
  set("PWD", std::string(workdir), Origin::login);
  if (!job.contains("TERM")) set("TERM", "dumb", Origin::login);

  for (const std::string& variable : image.environment) {
    const auto equals = variable.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    set(variable.substr(0, equals), variable.substr(equals + 1), Origin::image);
  }

  for (const auto& [name, value] : site.values) set(name, value, Origin::site);
  for (const auto& [name, value] : user_wishes.values) merged[name] = {value, Origin::option};
  return merged;
}

EnvironmentChange change_to(const Environment& environment, const std::map<std::string, std::string>& job) {
  EnvironmentChange change;
  for (const auto& [name, variable] : environment) {
    const auto old = job.find(name);
    if (old == job.end() || old->second != variable.value) change.set[name] = variable.value;
  }
  for (const auto& [name, value] : job) {
    if (!environment.contains(name)) change.unset.insert(name);
  }
  return change;
}

std::map<std::string, std::string> as_map(const char* const* environment, std::span<const std::string_view> prefixes) {
  std::map<std::string, std::string> variables;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view variable = *environment;
    const auto begins_with = [&](std::string_view prefix) { return variable.starts_with(prefix); };
    if (!prefixes.empty() && std::ranges::none_of(prefixes, begins_with)) continue;
    const auto equals = variable.find('=');
    if (equals != std::string_view::npos) variables[std::string(variable.substr(0, equals))] = variable.substr(equals + 1);
  }
  return variables;
}

}  // namespace spc
