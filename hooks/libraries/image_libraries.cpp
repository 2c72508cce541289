#include "hooks/libraries/image_libraries.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "hooks/libraries/host_library.hpp"
#include "hooks/loader/loader.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostDirectories = 16;

/// The first directories of a list like LD_LIBRARY_PATH.
std::vector<std::string> directories_in(const std::string& list) {
  auto directories = parts_of(list, ':');
  std::erase_if(directories, [](const std::string& path) { return !path.starts_with('/'); });
  if (directories.size() > kMostDirectories) directories.resize(kMostDirectories);
  return directories;
}

}  // namespace

ImageLibraries::ImageLibraries(const HookContext& context)
    : context_(context), loaders_(loaders_of_image(context)) {
  if (const std::string* path = context.of_image("LD_LIBRARY_PATH"))
    directories_ = directories_in(*path);
  for (const std::string& directory : directories_)
    std::ranges::move(libraries_in(context, directory), std::back_inserter(in_directories_));
  const UniqueFd file = context.open_in_image("/etc/ld.so.cache", O_RDONLY);
  if (!file) return;
  auto cache = LdCache::read(file.get());
  if (!cache) return;
  // A container that is started again still has what its last start gave it.
  cache->remove_if(
      [](const LdCache::Entry& entry) { return entry.path.starts_with(kNodeLibraries); });
  cache_ = *std::move(cache);
}

bool ImageLibraries::has_loader(std::uint16_t machine) const {
  return loaders_.empty() ||
         std::any_of(loaders_.begin(), loaders_.end(),
                     [&](const ImageLoader& loader) { return loader.machine == machine; });
}

std::vector<ImageLibrary> ImageLibraries::by_linker_name(std::string_view name,
                                                         std::uint16_t machine) const {
  std::map<std::string, std::string> paths;
  for (const ImageLibrary& library : in_directories_) {
    if (library.machine == machine && linker_name(library.soname) == name)
      paths.emplace(library.soname, library.path);
  }
  const auto flags = cache_flags_of(machine);
  if (cache_ && flags) {
    for (const LdCache::Entry& entry : cache_->entries()) {
      if (entry.flags == *flags && entry.soname.starts_with(name) &&
          linker_name(entry.soname) == name) {
        paths.emplace(entry.soname, entry.path);
      }
    }
  }
  // The loader looks there, too, for what the cache does not know.
  for (const std::string& directory : default_library_directories(machine)) {
    for (const ImageLibrary& library : libraries_in(context_, directory, name)) {
      if (library.machine == machine && linker_name(library.soname) == name)
        paths.emplace(library.soname, library.path);
    }
  }
  // A soname without a number is the linker's own file or a module, and no promise of an ABI.
  std::vector<ImageLibrary> found;
  for (const auto& [soname, path] : paths) {
    if (!library_version(soname).empty()) found.push_back({soname, path, machine});
  }
  return found;
}

std::optional<ElfFile> ImageLibraries::read(const std::string& path, std::uint16_t machine) const {
  const UniqueFd file = context_.open_in_image(path.c_str(), O_RDONLY);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  auto elf = read_elf(file.get());
  return elf && elf->machine == machine ? std::optional(*std::move(elf)) : std::nullopt;
}

std::optional<ElfFile> ImageLibraries::find(const std::string& soname,
                                            std::uint16_t machine) const {
  std::vector<std::string> paths;
  for (const std::string& directory : directories_) paths.push_back(directory + "/" + soname);
  const auto flags = cache_flags_of(machine);
  if (const auto* entry = cache_ && flags ? cache_->find(soname, *flags) : nullptr)
    paths.emplace_back(entry->path);
  for (const std::string& directory : default_library_directories(machine))
    paths.push_back(directory + "/" + soname);
  for (const std::string& path : paths) {
    if (auto elf = read(path, machine)) return elf;
  }
  return std::nullopt;
}

const ElfFile* ImageLibraries::library(const std::string& soname, std::uint16_t machine) {
  const auto [found, is_new] = read_.try_emplace({soname, machine});
  if (is_new) found->second = find(soname, machine);
  return found->second ? &*found->second : nullptr;
}

std::set<std::string> ImageLibraries::functions(const std::string& path,
                                                std::string_view prefix) const {
  const UniqueFd file = context_.open_in_image(path.c_str(), O_RDONLY);
  return file ? exported_functions(file.get(), prefix) : std::set<std::string>();
}

std::string ImageLibraries::libc(std::uint16_t machine) {
  if (const ElfFile* libc = library("libc.so.6", machine)) {
    const std::string version = highest_glibc(libc->version_definitions);
    if (!version.empty()) return version;
  }
  const bool musl = std::any_of(loaders_.begin(), loaders_.end(),
                                [](const ImageLoader& loader) { return loader.musl; });
  return musl ? "musl" : "another";
}

std::string ImageLibraries::file_name(const std::string& path) const {
  std::string directory = path.substr(0, path.rfind('/') + 1);
  std::string name = path.substr(directory.size());
  for (int links = 0; links < 8; ++links) {
    const UniqueFd link = context_.open_in_image((directory + name).c_str(), O_PATH | O_NOFOLLOW);
    char target[PATH_MAX];
    const ssize_t size = link ? ::readlinkat(link.get(), "", target, sizeof target) : -1;
    if (size <= 0) break;
    const std::string next(target, static_cast<std::size_t>(size));
    const auto slash = next.rfind('/');
    if (slash != std::string::npos)
      directory = (next[0] == '/' ? "" : directory) + next.substr(0, slash + 1);
    name = slash == std::string::npos ? next : next.substr(slash + 1);
  }
  return name;
}

}  // namespace spc
