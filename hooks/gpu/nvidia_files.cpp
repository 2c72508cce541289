#include "hooks/gpu/nvidia_files.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <map>
#include <string_view>

namespace spc {
namespace {

#if defined(__aarch64__)
constexpr char kMultiarch[] = "/usr/lib/aarch64-linux-gnu";
constexpr char kMultiarch32[] = "/usr/lib/arm-linux-gnueabihf";
constexpr std::uint16_t kMachine32 = EM_ARM;
#else
constexpr char kMultiarch[] = "/usr/lib/x86_64-linux-gnu";
constexpr char kMultiarch32[] = "/usr/lib/i386-linux-gnu";
constexpr std::uint16_t kMachine32 = EM_386;
#endif

/// Where libraries are put inside.
struct LibraryPlaces {
  std::string native = "/usr/lib64", of_32_bit = "/usr/lib";
};

LibraryPlaces places_in_image(const HookContext& context) {
  if (context.open_in_image && context.open_in_image("/etc/debian_version", O_RDONLY))
    return {kMultiarch, kMultiarch32};
  return {};
}

std::string target_directory_of(const NvidiaLibrary& library, const LibraryPlaces& places) {
  return (library.is_32_bit ? places.of_32_bit : places.native) +
         (library.folder.empty() ? "" : "/" + library.folder);
}

NvidiaOffer file_offer(const NvidiaFile& file) {
  return {.mount = {.source = file.path, .target = file.target, .optional = true},
          .uses = file.uses,
          .library = {}};
}

/// A socket, or a directory of sockets: programs write to it.
NvidiaOffer socket_offer(const NvidiaFile& socket) {
  NvidiaOffer offer = file_offer(socket);
  offer.mount.read_only = false;
  offer.mount.no_exec = true;
  return offer;
}

bool is_wanted(const NvidiaOffer& offer, std::uint32_t uses) {
  if (offer.library && offer.library->is_32_bit && (uses & for_32_bit) == 0) return false;
  return (offer.uses & uses & for_any) != 0;
}

/// Names that programs open, and that no soname stands for.
void add_links(const NvidiaLibrary& library, const std::string& directory, Edits& edits) {
  const std::string stem = library.file.substr(0, library.file.find(".so"));
  const auto link = [&](const std::string& name, const std::string& target) {
    edits.symlinks.push_back({directory + "/" + name, target});
  };
  // Programs that open a library by its name without version find it on the host; libcuda.so they
  // open everywhere.
  const bool is_opened_plain =
      library.has_plain_link || stem == "libcuda" || stem == "libnvidia-opticalflow";
  if (is_opened_plain && !library.soname.empty() && library.soname != stem + ".so")
    link(stem + ".so", library.soname);
  if (stem == "libGLX_nvidia") link("libGLX_indirect.so.0", library.file);
  if (stem == "libnvidia-vulkan-producer") link("libnvidia-vulkan-producer.so", library.file);
  if (stem == "libnvidia-allocator") link("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1");
  if (library.folder == "vdpau") link(stem + ".so.1", library.file);
}

void place_library(const NvidiaLibrary& library, const LibraryPlaces& places, MountEdit& mount,
                   Edits& edits) {
  const std::string directory = target_directory_of(library, places);
  mount.target = directory + "/" + library.file;
  if (!library.soname.empty()) {
    edits.libraries.push_back({.soname = library.soname,
                               .path = mount.target,
                               .machine = library.is_32_bit ? kMachine32 : std::uint16_t{0}});
  }
  add_links(library, directory, edits);
}

}  // namespace

std::string mps_directory(const HookContext& context) {
  const std::string* named = context.of_job("CUDA_MPS_PIPE_DIRECTORY");
  const std::string directory =
      named != nullptr && named->starts_with('/') ? *named : "/tmp/nvidia-mps";
  struct stat status {};
  const bool runs = ::stat((context.host_root + directory + "/control").c_str(), &status) == 0 &&
                    S_ISSOCK(status.st_mode);
  return runs ? directory : std::string();
}

std::vector<NvidiaOffer> offers_of(const HookContext& context, const NvidiaDriver& driver) {
  std::vector<NvidiaOffer> offers;
  if (!driver.versions_agree()) return offers;
  for (const NvidiaLibrary& library : driver.libraries) {
    const std::string target = target_directory_of(library, {}) + "/" + library.file;
    offers.push_back({.mount = {.source = library.path, .target = target},
                      .uses = library.uses,
                      .library = library});
  }
  for (const auto* files : {&driver.binaries, &driver.firmware, &driver.config_files}) {
    for (const NvidiaFile& file : *files) offers.push_back(file_offer(file));
  }
  for (const NvidiaFile& socket : driver.sockets) offers.push_back(socket_offer(socket));
  if (const std::string mps = mps_directory(context); !mps.empty()) {
    offers.push_back(socket_offer({mps, mps, for_compute}));
  }
  if (!driver.fs_nodes.empty()) {
    offers.push_back(file_offer({"/run/udev", "/run/udev", for_compute}));
    offers.back().mount.no_exec = true;
  }
  return offers;
}

void place_files(const HookContext& context, const std::vector<NvidiaOffer>& offers,
                 std::uint32_t uses, Edits& edits) {
  const auto places = places_in_image(context);
  std::map<std::string_view, const NvidiaOffer*> offered;
  for (const NvidiaOffer& offer : offers) offered.emplace(offer.mount.target, &offer);
  for (MountEdit& mount : edits.mounts) {
    const auto found = offered.find(mount.target);
    if (found == offered.end()) continue;
    const NvidiaOffer& offer = *found->second;
    if (!is_wanted(offer, uses)) {
      mount.target.clear();
    } else if (offer.library) {
      place_library(*offer.library, places, mount, edits);
    }
  }
}

}  // namespace spc
