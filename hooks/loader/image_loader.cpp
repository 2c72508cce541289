#include "hooks/loader/image_loader.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/directory.hpp"
#include "hooks/loader/elf.hpp"

namespace spc {
namespace {

/// Where programs look for their loader: psABIs for glibc, ldso/dynlink.c and the compiler's specs
/// for musl.
struct KnownLoader {
  std::uint16_t machine;
  const char* glibc;
  const char* musl;
  const char* musl_path;
};
constexpr std::array<KnownLoader, 5> kKnownLoaders{{
    {EM_X86_64, "/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1",
     "/etc/ld-musl-x86_64.path"},
    {EM_AARCH64, "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1",
     "/etc/ld-musl-aarch64.path"},
    {EM_386, "/lib/ld-linux.so.2", "/lib/ld-musl-i386.so.1", "/etc/ld-musl-i386.path"},
    {EM_ARM, "/lib/ld-linux-armhf.so.3", "/lib/ld-musl-armhf.so.1", "/etc/ld-musl-armhf.path"},
    {EM_PPC64, "/lib64/ld64.so.2", "/lib/ld-musl-powerpc64le.so.1",
     "/etc/ld-musl-powerpc64le.path"},
}};

constexpr std::size_t kMostDirectoryNames = 4096;

UniqueFd regular_file(const HookContext& context, const std::string& path) {
  UniqueFd file = context.open_in_image(path.c_str(), O_RDONLY);
  struct stat status {};
  return file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) ? std::move(file)
                                                                              : UniqueFd();
}

std::set<std::string> names_in(const HookContext& context, const std::string& directory,
                               std::string_view prefix) {
  std::set<std::string> names;
  DirectoryReader entries(context.open_in_image(directory.c_str(), O_RDONLY | O_DIRECTORY));
  for (std::size_t i = 0; i < kMostDirectoryNames && entries.next(); ++i) {
    const auto name = entries.name();
    if (name.starts_with(prefix) && name.find(".so") != std::string_view::npos) names.emplace(name);
  }
  return names;
}

}  // namespace

std::uint16_t machine_in_image(const HookContext& context, const std::string& path) {
  const UniqueFd file = regular_file(context, path);
  return file ? elf_machine_of(file.get()).value_or(0) : 0;
}

std::vector<ImageLoader> loaders_of_image(const HookContext& context) {
  std::vector<ImageLoader> loaders;
  for (const KnownLoader& known : kKnownLoaders) {
    ImageLoader loader{known.machine};
    loader.glibc = machine_in_image(context, known.glibc) == known.machine;
    loader.musl = machine_in_image(context, known.musl) == known.machine;
    loader.musl_path = known.musl_path;
    if (loader.glibc || loader.musl) loaders.push_back(loader);
  }
  return loaders;
}

const std::vector<std::string>& default_library_directories(std::uint16_t machine) {
  static const std::map<std::uint16_t, std::vector<std::string>> directories{
      {EM_X86_64,
       {"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib",
        "/usr/lib"}},
      {EM_AARCH64,
       {"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib",
        "/usr/lib"}},
      {EM_386, {"/lib/i386-linux-gnu", "/usr/lib/i386-linux-gnu", "/lib", "/usr/lib"}}};
  static const std::vector<std::string> otherwise{"/lib", "/usr/lib"};
  const auto found = directories.find(machine);
  return found == directories.end() ? otherwise : found->second;
}

std::vector<ImageLibrary> libraries_in(const HookContext& context, const std::string& directory,
                                       std::string_view prefix) {
  std::map<std::pair<std::uint16_t, std::string>, std::string> found;
  for (const std::string& name : names_in(context, directory, prefix)) {
    const UniqueFd file = regular_file(context, directory + "/" + name);
    if (!file) continue;
    const auto elf = read_elf(file.get());
    if (!elf || elf->type != ET_DYN) continue;
    std::string& path = found[{elf->machine, elf->soname.empty() ? name : elf->soname}];
    // The name that is the soname is for the loader to use; else the newest.
    if (path.empty() || name == elf->soname ||
        (path != elf->soname && compare_versions(name, path) > 0))
      path = name;
  }
  std::vector<ImageLibrary> libraries;
  for (const auto& [key, name] : found)
    libraries.push_back({key.second, directory + "/" + name, key.first});
  return libraries;
}

}  // namespace spc
