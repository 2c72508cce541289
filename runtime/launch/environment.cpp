#include "launch/environment.hpp"

namespace spc {

ImageSettings ImageSettings::parse(std::string_view records) {
  ImageSettings settings;
  while (!records.empty()) {
    const auto end = records.find('\0');
    const std::string_view record = records.substr(0, end);
    records.remove_prefix(end == std::string_view::npos ? records.size() : end + 1);
    const auto equals = record.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(equals + 1);
    if (key == "env") settings.environment.emplace_back(value);
    if (key == "workdir") settings.workdir = value;
    if (key == "settings") settings.in_files = value == "files";
  }
  return settings;
}

EnvironmentChange merge_environment(const std::map<std::string, std::string>& job, const ImageSettings& image,
                                    const std::set<std::string>& keep, const UserIdentity& user, std::string_view workdir) {
  EnvironmentChange change;
  const auto kept = [&](const std::string& name) { return keep.contains(name) && job.contains(name); };
  const auto set = [&](const std::string& name, std::string value) {
    if (!kept(name)) change.set[name] = std::move(value);
  };
  for (const char* name : {"LANG", "LANGUAGE", "LC_ALL"}) {
    if (!kept(name)) change.unset.insert(name);
  }

  // A login's defaults first, so that the image can override them.
  set("PATH", kDefaultPath);
  set("HOME", user.home);
  set("SHELL", user.shell);
  if (!user.name.empty()) {
    set("USER", user.name);
    set("LOGNAME", user.name);
  }
  set("PWD", std::string(workdir));
  if (!job.contains("TERM")) set("TERM", "dumb");

  for (const std::string& variable : image.environment) {
    const auto equals = variable.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    const std::string name = variable.substr(0, equals);
    if (kept(name)) continue;
    change.unset.erase(name);
    change.set[name] = variable.substr(equals + 1);
  }

  const bool pytorch = change.set.contains("PYTORCH_VERSION") || job.contains("PYTORCH_VERSION");
  const auto from_slurm = [&](const char* name, const char* slurm_name) {
    const auto found = job.find(slurm_name);
    if (found != job.end()) set(name, found->second);
  };
  if (pytorch) {
    from_slurm("RANK", "SLURM_PROCID");
    from_slurm("LOCAL_RANK", "SLURM_LOCALID");
  }
  return change;
}

std::map<std::string, std::string> as_map(const char* const* environment) {
  std::map<std::string, std::string> variables;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view variable = *environment;
    const auto equals = variable.find('=');
    if (equals != std::string_view::npos) variables[std::string(variable.substr(0, equals))] = variable.substr(equals + 1);
  }
  return variables;
}

}  // namespace spc
