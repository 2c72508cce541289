#include "hook_engine/hook_directory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <tuple>

#include "base/directory.hpp"
#include "base/trusted_file.hpp"

namespace spc {
namespace {

bool is_no_hook(std::string_view name) {
  constexpr std::array<std::string_view, 7> kEndings{"~",        ".bak",    ".orig",   ".swp",
                                                     ".rpmsave", ".rpmnew", ".rpmorig"};
  if (name.starts_with('.') || name.find(".dpkg-") != std::string_view::npos) return true;
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](auto ending) { return name.ends_with(ending); });
}

HookFile named(const std::string& directory, const std::string& name) {
  HookFile file;
  file.path = directory + "/" + name;
  file.stem = name.substr(0, name.rfind('.'));
  file.kind = name.ends_with(".sh")     ? HookFile::Kind::shell
              : name.ends_with(".json") ? HookFile::Kind::description
                                        : HookFile::Kind::program;
  return file;
}

bool is_null_device(const struct stat& status) {
  return S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3);
}

/// Whether it does nothing but turn off what it would replace.
Result<bool> is_off(const HookFile& file, uid_t owner) {
  struct stat status {};
  if (::stat(file.path.c_str(), &status) == 0 && is_null_device(status)) return true;
  const UniqueFd opened = SPC_TRY(open_trusted_file(file.path, "hook", owner));
  if (::fstat(opened.get(), &status) != 0)
    return Error::from_errno(errno, "hook " + in_quotes(file.path));
  return status.st_size == 0 ||
         (file.kind != HookFile::Kind::description && (status.st_mode & 0111) == 0);
}

}  // namespace

Result<std::vector<HookFile>> read_hook_directory(const std::string& path, uid_t owner) {
  std::vector<HookFile> files;
  auto opened = open_trusted_directory(path, "directory of hooks", owner);
  if (!opened && opened.error().sys_errno() == ENOENT) return files;
  if (!opened) return std::move(opened).error();
  DirectoryReader entries(*std::move(opened));
  while (entries.next()) {
    struct stat status {};
    if (is_no_hook(entries.name())) continue;
    if (::fstatat(entries.descriptor(), entries.c_name(), &status, 0) == 0 &&
        S_ISDIR(status.st_mode))
      continue;
    files.push_back(named(path, entries.c_name()));
    files.back().off = SPC_TRY(is_off(files.back(), owner));
  }
  if (entries.error() != 0)
    return Error::from_errno(entries.error(), "directory of hooks " + in_quotes(path));
  std::sort(files.begin(), files.end(), [](const HookFile& a, const HookFile& b) {
    return std::tie(a.stem, a.kind, a.path) < std::tie(b.stem, b.kind, b.path);
  });
  return files;
}

uid_t owner_of_the_node() {
  struct stat status {};
  return ::stat("/", &status) == 0 ? status.st_uid : 0;
}

}  // namespace spc
