#include "hooks/fabric/libraries.hpp"

#include <fcntl.h>

#include <algorithm>
#include <iterator>

#include "base/format.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/image_loader.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

constexpr char kPlace[] = "/usr/lib/spank-container/fabric/";  ///< inside
constexpr char kDrivers[] = "/etc/libibverbs.d/";
constexpr std::size_t kLargestCache = 16 << 20;
constexpr std::size_t kMostSearched = 64;  ///< directories of an image's LD_LIBRARY_PATH

std::string driver_file(const std::string& provider) { return kDrivers + provider + ".driver"; }

/// mlx5 of libmlx5-rdmav34.so, the name that libibverbs gives it (rdma-core, libibverbs/dynamic_driver.c); else empty.
std::string provider_of_file(std::string_view file) {
  const auto end = file.find("-rdmav");
  return file.starts_with("lib") && end != std::string_view::npos ? std::string(file.substr(3, end - 3)) : "";
}

/// libibverbs looks for a provider in its own directory first, where the image may have one of the same ABI that is older than
/// the adapter; by an absolute path it takes the node's. That fits the node's libibverbs only, so that has to be there, too.
void name_providers(const std::vector<std::string>& providers, Edits& edits) {
  const auto is_verbs = [](const LibraryEdit& library) { return library.soname == "libibverbs.so.1"; };
  const bool has_verbs = std::ranges::any_of(edits.libraries, is_verbs);
  for (const std::string& provider : providers) {
    const std::string place = has_verbs ? formatted("{}lib{}", kPlace, provider) : provider;
    edits.files.push_back({driver_file(provider), formatted("driver {}\n", place)});
  }
  if (!providers.empty() && !has_verbs)
    edits.warnings.emplace_back("fabric_libraries: a provider without libibverbs.so.1 (hint: name both: they fit each other only)");
}

}  // namespace

void add_fabric_libraries(const HookContext& context, Edits& edits) {
  std::vector<std::string> providers;
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
    if (const std::string provider = provider_of_file(name); !provider.empty()) providers.push_back(provider);
    edits.notes.push_back(formatted("the node's {} is mounted", path));
  }
  name_providers(providers, edits);
}

void prefer_fabric_libraries(const HookContext& context, Edits& edits) {
  const auto is_ours = [](const LibraryEdit& library) { return library.path.starts_with(kPlace); };
  const std::string* path = context.of_image("LD_LIBRARY_PATH");
  if (path == nullptr || path->empty() || std::ranges::none_of(edits.libraries, is_ours)) return;
  edits.environment.prepend["LD_LIBRARY_PATH"] = std::string(kPlace, sizeof kPlace - 2);
}

LibrariesInside::LibrariesInside(const HookContext& context, const Edits& edits) : context_(context), edits_(edits) {
  if (auto cache = context.image_file("/etc/ld.so.cache", kLargestCache)) cache_ = *std::move(cache);
}

bool LibrariesInside::image_has(const std::string& soname) const {
  if (cache_.find('\0' + soname + '\0') != std::string::npos || cache_.find('/' + soname + '\0') != std::string::npos)
    return true;
  auto directories = default_library_directories(own_machine());
  directories.insert(directories.end(), {"/usr/local/lib", "/opt/amazon/efa/lib", "/opt/amazon/efa/lib64", "/opt/amazon/ofi-nccl/lib"});
  const std::string* listed = context_.of_image("LD_LIBRARY_PATH");
  auto more = parts_of(listed == nullptr ? "" : *listed, ':');
  more.resize(std::min(more.size(), kMostSearched));
  std::ranges::move(more, std::back_inserter(directories));
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
  return std::ranges::any_of(std::vector{"libnccl.so.2", "libmpi.so.40", "libmpi.so.12", "libucp.so.0", "libfabric.so.1", "libpsm2.so.2"}, has);
}

bool LibrariesInside::uses_nccl() const {
  return context_.of_image("NCCL_VERSION") != nullptr || context_.of_image("PYTORCH_VERSION") != nullptr || image_has("libnccl.so.2");
}

}  // namespace spc
