#include "hooks/mpi/mpi_places.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>

#include "base/format.hpp"
#include "base/text.hpp"

namespace spc {
namespace {

constexpr std::array<std::string_view, 18> kInstallDirectories{
    "INSTALL_PREFIX", "PREFIX",  "EXEC_PREFIX", "BINDIR",         "SBINDIR",       "LIBEXECDIR",
    "DATAROOTDIR",    "DATADIR", "SYSCONFDIR",  "SHAREDSTATEDIR", "LOCALSTATEDIR", "LIBDIR",
    "INCLUDEDIR",     "INFODIR", "MANDIR",      "PKGDATADIR",     "PKGLIBDIR",     "PKGINCLUDEDIR"};

bool is_directory_of(std::string_view package, std::string_view name) {
  return name.starts_with(package) &&
         std::ranges::find(kInstallDirectories, name.substr(package.size())) !=
             kInstallDirectories.end();
}

}  // namespace

bool is_place_of_pmix(std::string_view name) { return is_directory_of("PMIX_", name); }

bool is_place_of_mpi(std::string_view name) {
  constexpr std::array<std::string_view, 5> kOthers{
      "OMPI_MCA_mca_base_component_path", "PMIX_MCA_mca_base_component_path", "I_MPI_ROOT",
      "I_MPI_PMI_LIBRARY", "UCX_MODULE_DIR"};
  return is_place_of_pmix(name) || is_directory_of("OPAL_", name) ||
         is_directory_of("PRTE_", name) || std::ranges::find(kOthers, name) != kOthers.end();
}

void unset_places_outside(const HookContext& context, Edits& edits) {
  if (!context.open_in_image) return;
  std::vector<std::string> names;
  for (const auto& [name, value] : context.environment) {
    if (!is_place_of_mpi(name) || context.of_image(name) != nullptr) continue;
    const std::string* of_job = context.of_job(name);
    const std::string first = value.substr(0, value.find(':'));
    if (of_job == nullptr || *of_job != value || !first.starts_with('/') ||
        context.open_in_image(first.c_str(), O_PATH))
      continue;
    edits.environment.unset.insert(name);
    names.push_back(name);
  }
  if (!names.empty())
    edits.notes.push_back(
        formatted("of an MPI of the host that the container does not have: {} {} unset",
                  joined(names, ", "), names.size() == 1 ? "is" : "are"));
}

}  // namespace spc
