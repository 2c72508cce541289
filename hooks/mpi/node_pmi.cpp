#include "hooks/mpi/node_pmi.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "base/format.hpp"
#include "hooks/libraries/image_libraries.hpp"
#include "hooks/libraries/library_fit.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/image_loader.hpp"
#include "hooks/mpi/image_mpi.hpp"

namespace spc {
namespace {

constexpr char kLibrary[] = "libpmi2.so.0";
constexpr char kInside[] = "/usr/lib/spank-container/pmi/libpmi2.so.0";
constexpr char kRememberedPmi[] = "libpmi2";
constexpr char kVariable[] = "I_MPI_PMI_LIBRARY";

/// MVAPICH2 --with-pm=slurm --with-pmi=pmi2, or MPICH: without it, the image's programs do not even
/// start.
[[gnu::cold]] bool is_linked_with_pmi2(const HookContext& context) {
  ImageLibraries libraries(context);
  const ElfFile* mpi = libraries.library("libmpi.so.12", own_machine());
  return mpi != nullptr && std::ranges::find(mpi->needed, kLibrary) != mpi->needed.end();
}

/// Whose libpmi2.so.0 is missing in the image; empty: nobody's.
std::string mpi_without_pmi2(const HookContext& context) {
  if (image_has_library(context, kLibrary)) return {};
  if (ImageMpi::has_intel(context)) return "Intel MPI";
  const ImageMpi mpi = ImageMpi::of(context);
  if (mpi.mpich && is_linked_with_pmi2(context)) return "MVAPICH2 or MPICH";
  return mpi.open_mpi && !mpi.open_mpi_5 && ImageMpi::open_mpi_has_pmi2(context) ? "Open MPI" : "";
}

/// Where the job says it is, or where Slurm installs it.
std::string pmi2_of_node(const HookContext& context) {
  auto directories = default_library_directories(own_machine());
  directories.insert(directories.end(),
                     {"/opt/slurm/lib64", "/opt/slurm/lib", "/usr/local/lib64", "/usr/local/lib"});
  std::vector<std::string> paths;
  if (const std::string* said = context.of_job(kVariable);
      said != nullptr && said->find("/libpmi2.so") != std::string::npos)
    paths.push_back(*said);
  for (const std::string& directory : directories) paths.push_back(directory + "/" + kLibrary);
  const auto is_there = [&](const std::string& path) {
    return ::access((context.host_root + path).c_str(), R_OK) == 0;
  };
  const auto found = std::ranges::find_if(paths, is_there);
  return found == paths.end() ? std::string() : *found;
}

}  // namespace

void offer_pmi2(const HookContext& context, Edits& edits) {
  const std::string* type = context.of_job("SLURM_MPI_TYPE");
  if (type == nullptr || *type != "pmi2") return;
  const std::string path = pmi2_of_node(context);
  if (path.empty()) return;
  const auto library = HostLibrary::read(context.host_root, path);
  if (!library) return;
  edits.remembered[kRememberedPmi] = library->serialize();
  edits.mounts.push_back({.source = library->source, .target = kInside, .optional = true});
}

void choose_pmi2(const HookContext& context, Edits& edits) {
  const std::string* type = context.of_job("SLURM_MPI_TYPE");
  if (type == nullptr || *type != "pmi2") return;
  const auto remembered = edits.remembered.find(kRememberedPmi);
  const auto drop = [&] {
    for (MountEdit& mount : edits.mounts) {
      if (mount.target == kInside) mount.target.clear();
    }
  };
  const std::string mpi = mpi_without_pmi2(context);
  if (mpi.empty()) return drop();
  if (remembered == edits.remembered.end()) {
    edits.warnings.push_back(formatted(
        "the image has {}, which finds Slurm by libpmi2.so.0: neither the image nor the node has it"
        " (hint: install Slurm's libpmi2 on the node)",
        mpi));
    return;
  }
  const std::vector<HostLibrary> libraries{HostLibrary::parse(remembered->second)};
  LibraryFit fit(context, "the node's Slurm", false);
  if (const auto choice = fit.choose(libraries); !choice.left_out.empty()) {
    edits.warnings.push_back(
        printable(formatted("{} cannot find Slurm: {} (hint: use an image of a newer distribution)",
                            mpi, choice.left_out.front().second.text)));
    return drop();
  }
  edits.libraries.push_back(
      {.soname = kLibrary, .path = kInside, .before = false, .machine = libraries.front().machine});
  edits.notes.push_back(formatted("the node's {} is added for {}", libraries.front().source, mpi));
}

void name_pmi2(const HookContext& context, Edits& edits) {
  if (!ImageMpi::has_intel(context) || !context.open_in_image(kInside, O_PATH)) return;
  edits.environment.defaults[kVariable] = kInside;
}

}  // namespace spc
