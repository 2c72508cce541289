#include "hooks/mpi/image_mpi.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "hooks/text.hpp"

namespace spc {
namespace {

constexpr char kIntelMpi[] = "/opt/intel/oneapi/mpi/latest";

constexpr std::array<const char*, 26> kMpiDirectories{"/usr/lib/x86_64-linux-gnu",
                                                      "/usr/lib/aarch64-linux-gnu",
                                                      "/usr/lib64",
                                                      "/usr/lib",
                                                      "/usr/local/lib",
                                                      "/usr/local/lib64",
                                                      "/usr/local/mpi/lib",
                                                      "/opt/hpcx/ompi/lib",
                                                      "/usr/lib64/openmpi/lib",
                                                      "/usr/lib64/mpich/lib",
                                                      "/opt/amazon/openmpi/lib",
                                                      "/opt/amazon/openmpi/lib64",
                                                      "/opt/amazon/openmpi5/lib",
                                                      "/opt/amazon/openmpi5/lib64",
                                                      "/opt/openmpi/lib",
                                                      "/opt/mpich/lib",
                                                      "/opt/intel/oneapi/mpi/latest/lib",
                                                      "/opt/intel/oneapi/mpi/latest/lib/release",
                                                      "/usr/lib/x86_64-linux-gnu/openmpi/lib",
                                                      "/usr/lib/aarch64-linux-gnu/openmpi/lib",
                                                      "/usr/lib64/mpi/gcc/openmpi4/lib64",
                                                      "/usr/lib64/mpi/gcc/openmpi5/lib64",
                                                      "/usr/lib64/mpi/gcc/mpich/lib64",
                                                      "/usr/lib64/mpi/gcc/mvapich2/lib64",
                                                      "/opt/conda/lib",
                                                      "/opt/cray/pe/lib64"};

bool is_there(const HookContext& context, const std::string& directory, std::string_view name) {
  return static_cast<bool>(
      context.open_in_image((directory + "/" + std::string(name)).c_str(), O_PATH));
}

/// Names in the cache end with a zero byte; before them is another, or they are the end of a path.
bool in_cache(std::string_view cache, std::string_view soname) {
  const std::string name = std::string(soname) + '\0';
  for (auto at = cache.find(name); at != std::string_view::npos; at = cache.find(name, at + 1)) {
    if (at > 0 && (cache[at - 1] == '\0' || cache[at - 1] == '/')) return true;
  }
  return false;
}

/// Those of an image's LD_LIBRARY_PATH.
std::vector<std::string> listed_directories(const HookContext& context) {
  const std::string* listed = context.of_image("LD_LIBRARY_PATH");
  auto directories = parts_of(listed == nullptr ? "" : *listed, ':');
  std::erase_if(directories,
                [](const std::string& directory) { return !directory.starts_with('/'); });
  return directories;
}

bool image_has(const HookContext& context, const std::string& cache, std::string_view soname) {
  const auto has = [&](const std::string& directory) {
    return is_there(context, directory, soname);
  };
  return in_cache(cache, soname) || std::ranges::any_of(kMpiDirectories, has) ||
         std::ranges::any_of(listed_directories(context), has);
}

std::string cache_of(const HookContext& context) {
  return context.image_file("/etc/ld.so.cache", 4 << 20).value_or("");
}

}  // namespace

bool image_has_library(const HookContext& context, std::string_view soname) {
  return context.open_in_image && image_has(context, cache_of(context), soname);
}

ImageMpi ImageMpi::of(const HookContext& context) {
  ImageMpi mpi;
  if (!context.open_in_image) return mpi;
  const std::string cache = cache_of(context);
  mpi.open_mpi = image_has(context, cache, "libmpi.so.40");
  mpi.mpich =
      image_has(context, cache, "libmpi.so.12") || image_has(context, cache, "libmpich.so.12");
  mpi.open_mpi_5 = mpi.open_mpi && image_has(context, cache, "libopen-pal.so.80");
  mpi.pmix = image_has(context, cache, "libpmix.so.2");
  mpi.pmi2 = image_has(context, cache, "libpmi2.so.0");
  mpi.cray_pmi =
      image_has(context, cache, "libpals.so.0") || is_there(context, "/opt/cray/pe/pmi", "");
  return mpi;
}

bool ImageMpi::has_intel(const HookContext& context) {
  return context.open_in_image &&
         (context.of_image("I_MPI_ROOT") != nullptr || is_there(context, kIntelMpi, ""));
}

bool ImageMpi::open_mpi_has_pmi2(const HookContext& context) {
  auto directories = listed_directories(context);
  directories.insert(directories.end(), kMpiDirectories.begin(), kMpiDirectories.end());
  if (const std::string* prefix = context.of_image("OPAL_PREFIX"))
    directories.push_back(*prefix + "/lib");
  bool known = false;
  for (const std::string& directory : directories) {
    for (const char* components : {"/openmpi", "/openmpi3"}) {  // Debian's is the second
      if (is_there(context, directory + components, "mca_pmix_s2.so")) return true;
      known = known || is_there(context, directory + components, "mca_pml_ob1.so");
    }
  }
  return !known && image_has_library(context, "libpmi2.so.0");
}

}  // namespace spc
