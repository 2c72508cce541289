#include "launch/sources/slurm_client.hpp"

#include <fcntl.h>
#include <glob.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <set>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"

namespace spc {

namespace {

constexpr const char* kCommands[] = {"sacct",  "sacctmgr", "salloc",   "sattach",  "sbatch",
                                     "sbcast", "scancel",  "scontrol", "scrontab", "sdiag",
                                     "sinfo",  "sprio",    "squeue",   "sreport",  "srun",
                                     "sshare", "sstat",    "strigger"};

std::string parent_of(std::string_view path) {
  const auto slash = path.find_last_of('/');
  return slash == 0 || slash == std::string_view::npos ? "/" : std::string(path.substr(0, slash));
}

std::string_view last_component(std::string_view path) {
  return path.substr(path.find_last_of('/') + 1);
}

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

/// Returns the path without links; empty if it does not exist.
std::string resolved_path(const std::string& path) {
  char found[PATH_MAX];
  return ::realpath(path.c_str(), found) == nullptr ? std::string() : std::string(found);
}

std::string small_file(const char* path) {
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  constexpr std::size_t kSane = 4 << 20;
  auto text = file ? read_file(file.get(), kSane) : Result<std::string>(std::string());
  return text ? *std::move(text) : std::string();
}

/// Returns srun's directory: from the job's PATH, otherwise the usual ones.
std::string directory_of_commands(const std::map<std::string, std::string>& environment) {
  const auto path = environment.find("PATH");
  std::string_view rest = path == environment.end() ? std::string_view() : path->second;
  while (!rest.empty()) {
    const std::string directory(next_part(rest, ':'));
    if (directory.starts_with('/') && ::access((directory + "/srun").c_str(), X_OK) == 0)
      return directory;
  }
  for (const char* directory : {"/usr/bin", "/usr/local/bin", "/opt/slurm/bin"}) {
    if (::access((std::string(directory) + "/srun").c_str(), X_OK) == 0) return directory;
  }
  return {};
}

/// Returns the directories that may contain slurm.conf: those of the job, of slurmd and of the
/// distributions.
std::vector<std::string> configuration_directories(
    const std::map<std::string, std::string>& environment) {
  std::vector<std::string> directories;
  const auto add = [&](const std::string& directory) {
    const bool known =
        std::find(directories.begin(), directories.end(), directory) != directories.end();
    if (!known && ::access((directory + "/slurm.conf").c_str(), R_OK) == 0)
      directories.push_back(directory);
  };
  if (const auto named = environment.find("SLURM_CONF"); named != environment.end())
    add(parent_of(named->second));
  if (const char* named = std::getenv("SLURM_CONF")) add(parent_of(named));
  for (const char* directory :
       {"/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf", "/var/spool/slurmd/conf-cache"})
    add(directory);
  return directories;
}

/// Returns the daemons' users, which Slurm's commands look up.
std::vector<std::string> users_in(const std::string& configuration) {
  std::set<std::string> names{"root"};
  std::string_view rest = configuration;
  while (!rest.empty()) {
    const std::string_view line = next_part(rest, '\n');
    for (const std::string_view key : {"SlurmUser=", "SlurmdUser="}) {
      if (!line.starts_with(key)) continue;
      const std::string_view value = line.substr(key.size());
      names.emplace(value.substr(0, value.find_first_of(" \t#")));
    }
  }
  std::vector<std::string> entries;
  for (const std::string& name : names) {
    std::vector<char> buffer(16 * 1024);
    passwd entry{};
    passwd* found = nullptr;
    if (::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
        found == nullptr)
      continue;
    entries.push_back(name + ":x:" + std::to_string(entry.pw_uid) + ":" +
                      std::to_string(entry.pw_gid) + "::/:/sbin/nologin");
  }
  return entries;
}

/// Returns the directories of the sockets for authentication: munge's, and the daemons' own with
/// auth/slurm. Directories and not sockets, which are replaced on a restart.
std::vector<std::string> socket_directories() {
  std::vector<std::string> directories;
  if (is_directory("/run/munge")) directories.emplace_back("/run/munge");
  glob_t found{};
  if (::glob("/run/slurm*/sack.socket", GLOB_NOSORT, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i)
      directories.push_back(parent_of(found.gl_pathv[i]));
  }
  ::globfree(&found);
  return directories;
}

/// Returns `/usr` of `/usr/lib/x`.
std::string top_of(const std::string& path) { return path.substr(0, path.find('/', 1)); }

}  // namespace

void add_slurm_stubs(RootSetup& root) {
  constexpr char kStub[] =
      "#!/bin/sh\n"
      "echo \"spank-container: execute \\\"${0##*/}\\\": the container does not have Slurm's "
      "commands (hint: #SBATCH --container-slurm, or #SBATCH --container-batch=steps, which runs "
      "the script "
      "on the host)\" >&2\n"
      "exit 127\n";
  const std::string directory = std::string(kSlurmStubs) + "/";
  root.files.push_back({directory + "srun", kStub, 0755});
  for (const char* name : kCommands) {
    if (name != std::string_view("srun")) root.links.push_back({directory + name, "srun"});
  }
}

MappedLibraries mapped_libraries(std::string_view maps) {
  MappedLibraries mapped;
  while (!maps.empty()) {
    const std::string_view line = next_part(maps, '\n');
    const auto slash = line.find('/');
    if (slash == std::string_view::npos || line.find(".so") == std::string_view::npos) continue;
    const std::string_view path = line.substr(slash);
    const std::string_view name = last_component(path);
    if (name.find(".so") == std::string_view::npos) continue;
    const bool is_loader = name.starts_with("ld-") || name.starts_with("ld64.");
    if (is_loader && mapped.loader.empty()) mapped.loader = path;
    const std::string directory = parent_of(path);
    // Every command and daemon of Slurm loads an authentication plugin.
    if (name.starts_with("auth_") && mapped.plugins.empty()) mapped.plugins = directory;
    if (std::find(mapped.directories.begin(), mapped.directories.end(), directory) ==
        mapped.directories.end()) {
      mapped.directories.push_back(directory);
    }
  }
  return mapped;
}

SlurmClient find_slurm_client(const std::map<std::string, std::string>& environment) {
  SlurmClient client;
  const auto give_up = [&](const std::string& why) {
    client.why_not = why;
    return client;
  };
  const std::string commands = directory_of_commands(environment);
  if (commands.empty()) return give_up("no srun on this node");
  const std::string helper = own_program("container-helper");
  if (::access(helper.c_str(), X_OK) != 0) return give_up(helper + " is missing");
  const auto configuration = configuration_directories(environment);
  if (configuration.empty()) return give_up("no slurm.conf on this node");
  const auto mapped = mapped_libraries(small_file("/proc/self/maps"));
  if (mapped.loader.empty() || mapped.plugins.empty())
    return give_up("Slurm's libraries not found");

  std::set<std::string> tops;
  std::string libraries;
  for (const std::string& directory : mapped.directories) {
    tops.insert(top_of(directory));
    libraries += (libraries.empty() ? "" : ":") + directory;
  }
  client.table = formatted("loader {}\nlibraries {}\n", mapped.loader, libraries);
  tops.insert(top_of(mapped.loader));
  std::vector<SlurmClient::Bind> at_their_paths;
  for (const char* name : kCommands) {
    const std::string path = commands + "/" + name;
    const std::string real = resolved_path(path);
    if (real.empty()) continue;
    tops.insert(top_of(real));
    client.table += formatted("{} {}\n", name, real);
    at_their_paths.push_back({helper, path});
  }
  for (const std::string& top : tops) client.binds.push_back({top, kSlurmRoot + top});
  client.binds.insert(client.binds.end(), at_their_paths.begin(), at_their_paths.end());
  client.binds.push_back({mapped.plugins, mapped.plugins});
  for (const std::string& directory : socket_directories())
    client.binds.push_back({directory, directory});
  for (const std::string& directory : configuration) client.binds.push_back({directory, directory});
  client.passwd_entries = users_in(small_file((configuration.front() + "/slurm.conf").c_str()));
  return client;
}

}  // namespace spc
