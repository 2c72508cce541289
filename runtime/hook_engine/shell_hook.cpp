#include "hook_engine/shell_hook.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/directory.hpp"
#include "base/trusted_file.hpp"
#include "hook_engine/hook_directory.hpp"

namespace spc {
namespace {

constexpr std::string_view kEnd = ".sh";
constexpr char kWhat[] = "hook";

enum class Whose { site, user };

Result<UniqueFd> open_directory(const std::string& path, Whose whose) {
  if (whose == Whose::user)
    return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (::access(path.c_str(), F_OK) != 0) return UniqueFd();
  return open_trusted_directory(path, "directory of hooks", owner_of_the_node());
}

Result<std::vector<std::string>> scripts_in(const std::string& path, Whose whose) {
  std::vector<std::string> names;
  UniqueFd directory = SPC_TRY(open_directory(path, whose));
  if (!directory) return names;
  DirectoryReader files(std::move(directory));
  while (files.next()) {
    const auto name = files.name();
    if (name.size() > kEnd.size() && name.ends_with(kEnd) && name[0] != '.')
      names.emplace_back(name);
  }
  if (files.error() != 0) return Error::from_errno(files.error(), "read " + in_quotes(path));
  std::sort(names.begin(), names.end());
  return names;
}

/// Something that can be executed and has something to do.
Result<bool> is_hook(const std::string& path, Whose whose) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0)
    return false;
  if ((status.st_mode & 0111) == 0 || ::access(path.c_str(), X_OK) != 0) return false;
  if (whose == Whose::site) SPC_TRY(open_trusted_file(path, kWhat, owner_of_the_node()));
  return true;
}

}  // namespace

Result<std::vector<ShellHook>> find_shell_hooks(const HookContext& context,
                                                const std::string& users) {
  const bool compat = context.flag("enroot_compat", false);
  std::vector<std::pair<std::string, Whose>> directories;
  if (compat) directories.emplace_back("/etc/enroot/hooks.d", Whose::site);
  directories.emplace_back(SPC_HOOKS_DIR, Whose::site);
  if (compat && !users.empty()) directories.emplace_back(users + "/hooks.d", Whose::user);
  const auto off = context.settings_of("hooks_off");
  std::vector<ShellHook> hooks;
  for (const auto& [directory, whose] : directories) {
    for (const std::string& file : SPC_TRY(scripts_in(directory, whose))) {
      const std::string name = file.substr(0, file.size() - kEnd.size());
      if (std::find(off.begin(), off.end(), name) != off.end()) continue;
      const std::string path = directory + "/" + file;
      const bool is_executable = SPC_TRY(is_hook(path, whose));
      hooks.push_back({name, path, is_executable});
    }
  }
  return hooks;
}

}  // namespace spc
