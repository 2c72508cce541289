#include "launch/spec/environment.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace spc {

namespace {

/// As for docker, `ENTRYPOINT [""]` and `CMD [""]` mean none.
void drop_blank(std::vector<std::string>& words) {
  if (words.size() == 1 && words.front().empty()) words.clear();
}

}  // namespace

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
  drop_blank(settings.entrypoint);
  drop_blank(settings.command);
  return settings;
}

std::vector<std::string> ImageSettings::after_scripts(
    std::vector<std::string> program, const std::map<std::string, std::string>& kept) const {
  if (environment_scripts.empty()) return program;
  std::string text;
  for (const std::string& script : environment_scripts) text += ". " + for_shell(script) + "; ";
  for (const auto& [name, value] : kept) {
    if (is_shell_name(name))
      text += "export " + name + "=" + for_shell(value) + "; ";  // no script has changed others
  }
  text += "exec \"$@\"";
  program.insert(program.begin(), {"/bin/sh", "-c", text, "sh"});
  return program;
}

// --- classes of variables ---

namespace {

constexpr std::string_view kLanguage[] = {"LANG", "LANGUAGE", "LC_*"};
constexpr std::string_view kUser[] = {"HOME", "USER", "LOGNAME", "SHELL"};
constexpr std::string_view kSlurm[] = {"SLURM_*", "SLURMD_*"};
constexpr std::string_view kLaunch[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "NODE_RANK",
                                        "GROUP_RANK",
                                        "GROUP_WORLD_SIZE",
                                        "ROLE_RANK",
                                        "ROLE_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_*",
                                        "JAX_COORDINATOR_ADDRESS",
                                        "JAX_NUM_PROCESSES",
                                        "JAX_PROCESS_ID"};
constexpr std::string_view kMpi[] = {"PMI_FD",
                                     "PMI_RANK",
                                     "PMI_SIZE",
                                     "PMI_ID",
                                     "PMI_PORT",
                                     "PMI_JOBID",
                                     "PMI_KVS*",
                                     "PMI_SPAWNED",
                                     "PMI_LOCAL_*",
                                     "PMI_UNIVERSE_SIZE",
                                     "PMI_PROCESS_MAPPING",
                                     "PMI2_*",
                                     "PMIX_RANK",
                                     "PMIX_NAMESPACE",
                                     "PMIX_SERVER_*",
                                     "PMIX_HOSTNAME",
                                     "PMIX_SYSTEM_TMPDIR",
                                     "PMIX_SECURITY_MODE",
                                     "PMIX_PTL_MODULE",
                                     "PMIX_GDS_MODULE",
                                     "PMIX_BFROP_BUFFER_TYPE",
                                     "PMIX_DSTORE_*",
                                     "OMPI_COMM_WORLD_*",
                                     "OMPI_UNIVERSE_SIZE",
                                     "OMPI_APP_CTX_NUM_PROCS",
                                     "MPI_LOCALRANKID",
                                     "MPI_LOCALNRANKS",
                                     "MV2_COMM_WORLD_*",
                                     "PALS_*"};
constexpr std::string_view kGpu[] = {"CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                                     "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
                                     "GPU_DEVICE_ORDINAL",   "ZE_AFFINITY_MASK"};

constexpr VariableClass kVariableClasses[] = {
    {"language", kLanguage, ImageValue::always, Origin::job, "the image's; the job's are dropped"},
    {"user", kUser, ImageValue::never, Origin::user,
     "the user's, as the node or else the job has them; never the image's"},
    {"slurm", kSlurm, ImageValue::never, Origin::slurm, "the job's; never the image's"},
    {"launch", kLaunch, ImageValue::alone, Origin::launch,
     "the job's; the image's only in a step of one task whose job sets none of these"},
    {"mpi", kMpi, ImageValue::never, Origin::mpi, "the job's; never the image's"},
    {"gpu", kGpu, ImageValue::unset, Origin::gpu,
     "the job's; the image's if the job does not set them"},
};

bool fits(std::string_view pattern, std::string_view name) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1))
                                : name == pattern;
}

/// Returns whether the step has several tasks. None of them can then have a rank set in the image.
bool has_several_tasks(const Environment& environment) {
  const auto tasks = environment.find("SLURM_STEP_NUM_TASKS");
  return tasks != environment.end() && tasks->second.value != "1" && tasks->second.value != "0";
}

bool is_images(const Variable& variable) {
  return variable.origin == Origin::image || variable.origin == Origin::entrypoint;
}

}  // namespace

std::span<const VariableClass> variable_classes() { return kVariableClasses; }

const VariableClass* class_of(std::string_view name) {
  const auto has_it = [&](const VariableClass& one) {
    return std::ranges::any_of(one.names,
                               [&](std::string_view pattern) { return fits(pattern, name); });
  };
  const auto* found = std::ranges::find_if(kVariableClasses, has_it);
  return found == std::end(kVariableClasses) ? nullptr : found;
}

bool image_counts(std::string_view name, const Environment& environment) {
  const VariableClass* const own = class_of(name);
  if (own == nullptr || own->image == ImageValue::always) return true;
  if (own->image == ImageValue::never) return false;
  if (own->image == ImageValue::alone && has_several_tasks(environment)) return false;
  return std::ranges::none_of(environment, [&](const auto& one) {
    const bool is_meant =
        own->image == ImageValue::alone ? class_of(one.first) == own : one.first == name;
    return is_meant && !is_images(one.second);
  });
}

// --- a task's environment ---

const char* name_of(Origin origin) {
  const auto* own = std::ranges::find(kVariableClasses, origin, &VariableClass::origin);
  if (own != std::end(kVariableClasses) && origin != Origin::job) return own->name;
  switch (origin) {
    case Origin::login: return "login";
    case Origin::image: return "image";
    case Origin::site: return "site";
    case Origin::kept: return "job, kept";
    case Origin::option: return "--container-env";
    case Origin::hook: return "hook";
    case Origin::entrypoint: return "entrypoint";
    case Origin::container: return "container";
    default: return "job";
  }
}

Environment merge_environment(const std::map<std::string, std::string>& job,
                              const ImageSettings& image, const EnvironmentWishes& site,
                              const EnvironmentWishes& user_wishes, const UserIdentity& user,
                              std::string_view workdir) {
  Environment merged;
  for (const auto& [name, value] : job) {
    const VariableClass* const own = class_of(name);
    const bool is_kept = user_wishes.keeps(name) || site.keeps(name);
    if (own != nullptr && own->image == ImageValue::always && !is_kept) continue;
    merged[name] = {value, is_kept ? Origin::kept : own != nullptr ? own->origin : Origin::job};
  }
  const auto set = [&](const std::string& name, std::string value, Origin origin) {
    const auto found = merged.find(name);
    if (found == merged.end() || found->second.origin != Origin::kept)
      merged[name] = {std::move(value), origin};
  };

  // Set a login's defaults first, so that the image can override them.
  set("PATH", kDefaultPath, Origin::login);
  if (!job.contains("TERM")) set("TERM", "dumb", Origin::login);

  std::vector<std::string> ignored;
  for (const std::string& variable : image.environment) {
    const auto equals = variable.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    const std::string name = variable.substr(0, equals);
    if (image_counts(name, merged)) {
      set(name, variable.substr(equals + 1), Origin::image);
    } else {
      ignored.push_back(name);
    }
  }

  set("PWD", std::string(workdir), Origin::login);
  set("HOME", user.home, Origin::user);
  set("SHELL", user.shell, Origin::user);
  if (!user.name.empty()) {
    set("USER", user.name, Origin::user);
    set("LOGNAME", user.name, Origin::user);
  }

  for (const auto& [name, value] : site.values) set(name, value, Origin::site);
  std::erase_if(merged, [&](const auto& one) {
    return user_wishes.unsets(one.first) ||
           (site.unsets(one.first) && !user_wishes.keeps(one.first));
  });
  for (const auto& [name, value] : user_wishes.values) merged[name] = {value, Origin::option};
  for (const auto& [name, text] : user_wishes.before)
    merged[name] = {text + merged[name].value, Origin::option};
  for (const auto& [name, text] : user_wishes.behind)
    merged[name] = {merged[name].value + text, Origin::option};
  for (const std::string& name : ignored) {
    if (const auto found = merged.find(name); found != merged.end())
      found->second.over_image = true;
  }
  return merged;
}

EnvironmentChange change_to(const Environment& environment,
                            const std::map<std::string, std::string>& job) {
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

std::map<std::string, std::string> as_map(const char* const* environment,
                                          std::span<const std::string_view> prefixes) {
  std::map<std::string, std::string> variables;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view variable = *environment;
    const auto begins_with = [&](std::string_view prefix) { return variable.starts_with(prefix); };
    if (!prefixes.empty() && std::ranges::none_of(prefixes, begins_with)) continue;
    const auto equals = variable.find('=');
    if (equals != std::string_view::npos)
      variables[std::string(variable.substr(0, equals))] = variable.substr(equals + 1);
  }
  return variables;
}

}  // namespace spc
