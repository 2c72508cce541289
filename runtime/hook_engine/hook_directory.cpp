#include "hook_engine/hook_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string_view>
#include <tuple>

#include "base/trusted_file.hpp"

namespace spc {
namespace {

bool is_no_hook(std::string_view name) {
  constexpr std::array<std::string_view, 7> kEndings{"~", ".bak", ".orig", ".swp", ".rpmsave", ".rpmnew", ".rpmorig"};
  if (name.starts_with('.') || name.find(".dpkg-") != std::string_view::npos) return true;
  return std::any_of(kEndings.begin(), kEndings.end(), [&](auto ending) { return name.ends_with(ending); });
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

bool is_null_device(const struct stat& status) { return S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3); }

/// Whether it does nothing but turn off what it would replace.
Result<bool> is_off(const HookFile& file, uid_t owner) {
  struct stat status {};
  if (::stat(file.path.c_str(), &status) == 0 && is_null_device(status)) return true;
  const UniqueFd opened = SPC_TRY(open_trusted_file(file.path, "hook", owner));
  if (::fstat(opened.get(), &status) != 0) return Error::from_errno(errno, "hook " + in_quotes(file.path));
  return status.st_size == 0 || (file.kind != HookFile::Kind::description && (status.st_mode & 0111) == 0);
}

}  // namespace

Result<std::vector<HookFile>> read_hook_directory(const std::string& path, uid_t owner) {
  std::vector<HookFile> files;
  auto opened = open_trusted_directory(path, "directory of hooks", owner);
  if (!opened && opened.error().sys_errno() == ENOENT) return files;
  if (!opened) return std::move(opened).error();
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(opened->get()), ::closedir);
  if (!directory) return Error::from_errno(errno, "directory of hooks " + in_quotes(path));
  [[maybe_unused]] const int owned_by_it = opened->release();
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr && errno != 0) return Error::from_errno(errno, "directory of hooks " + in_quotes(path));
    if (entry == nullptr) break;
    struct stat status {};
    if (is_no_hook(entry->d_name)) continue;
    if (::fstatat(::dirfd(directory.get()), entry->d_name, &status, 0) == 0 && S_ISDIR(status.st_mode)) continue;
    files.push_back(named(path, entry->d_name));
    files.back().off = SPC_TRY(is_off(files.back(), owner));
  }
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
