#include "hooks/fabric/libraries.hpp"

#include <fcntl.h>

#include <algorithm>

#include "base/format.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/image_loader.hpp"

namespace spc {
namespace {

constexpr char kPlace[] = "/usr/lib/spank-container/fabric/";  ///< inside
constexpr char kDrivers[] = "/etc/libibverbs.d/";
constexpr std::size_t kLargestCache = 16 << 20;

std::string driver_file(const std::string& provider) { return kDrivers + provider + ".driver"; }

/// mlx5 of libmlx5-rdmav34.so, the name that libibverbs gives it (rdma-core, libibverbs/dynamic_driver.c); else empty.
std::string provider_of_file(std::string_view file) {
  const auto end = file.find("-rdmav");
  return file.starts_with("lib") && end != std::string_view::npos ? std::string(file.substr(3, end - 3)) : "";
}

}  // namespace

void add_fabric_libraries(const HookContext& context, Edits& edits) {
  for (const std::string& path : context.settings_of("fabric_libraries")) {
    const UniqueFd file(::open((context.host_root + path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    const auto elf = file ? read_elf(file.get()) : Result<ElfFile>(Error(ErrorKind::not_found, "cannot be opened"));
    if (!elf) {
      edits.warnings.push_back(
          formatted("fabric_libraries: {} on this node: {}", path, elf.error().message()));
      continue;
    }
    const std::string name = path.substr(path.rfind('/') + 1);
    const std::string target = kPlace + name;
    MountEdit mount;
    mount.source = path;
    mount.target = target;
    edits.mounts.push_back(std::move(mount));
    edits.libraries.push_back({.soname = name, .path = target, .before = true, .machine = elf->machine});
    if (!elf->soname.empty() && elf->soname != name)
      edits.libraries.push_back({.soname = elf->soname, .path = target, .before = true, .machine = elf->machine});
    if (const std::string provider = provider_of_file(name); !provider.empty())
      edits.files.push_back({driver_file(provider), formatted("driver {}\n", provider)});
    edits.notes.push_back(formatted("the node's {} is mounted", path));
  }
}

LibrariesInside::LibrariesInside(const HookContext& context, const Edits& edits) : context_(context), edits_(edits) {
  if (auto cache = context.image_file("/etc/ld.so.cache", kLargestCache)) cache_ = *std::move(cache);
}

bool LibrariesInside::image_has(const std::string& soname) const {
  if (cache_.find('\0' + soname + '\0') != std::string::npos || cache_.find('/' + soname + '\0') != std::string::npos)
    return true;
  auto directories = default_library_directories(own_machine());
  directories.insert(directories.end(), {"/usr/local/lib", "/opt/amazon/efa/lib", "/opt/amazon/efa/lib64"});
  return std::ranges::any_of(directories, [&](const std::string& directory) {
    return context_.open_in_image && context_.open_in_image((directory + "/" + soname).c_str(), O_RDONLY);
  });
}

bool LibrariesInside::have(const std::string& soname) const {
  const auto is_it = [&](const LibraryEdit& library) { return library.soname == soname; };
  return std::ranges::any_of(edits_.libraries, is_it) || image_has(soname);
}

bool LibrariesInside::have_provider(const std::string& provider) const {
  const std::string path = driver_file(provider);
  if (std::ranges::any_of(edits_.files, [&](const FileEdit& file) { return file.path == path; })) return true;
  return context_.open_in_image && context_.open_in_image(path.c_str(), O_RDONLY);
}

bool LibrariesInside::can_talk() const {
  for (const char* name : {"NCCL_VERSION", "PYTORCH_VERSION", "OPENMPI_VERSION", "OMPI_VERSION"}) {
    if (context_.of_image(name) != nullptr) return true;
  }
  const auto has = [&](const char* soname) { return image_has(soname); };
  return std::ranges::any_of(std::vector{"libnccl.so.2", "libmpi.so.40", "libmpi.so.12", "libucp.so.0", "libfabric.so.1"}, has);
}

}  // namespace spc
