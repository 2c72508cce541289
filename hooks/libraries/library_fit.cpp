#include "hooks/libraries/library_fit.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/format.hpp"
#include "hooks/loader/elf.hpp"

namespace spc {
namespace {

std::set<std::string> without(const std::set<std::string>& all,
                              const std::set<std::string>& these) {
  std::set<std::string> rest;
  std::set_difference(all.begin(), all.end(), these.begin(), these.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

/// What it needs of `name` by versions that are not among `defined`. A library without any versions
/// has all symbols as far as the loader can know.
std::set<std::string> missing_versions(const HostLibrary& library, const std::string& name,
                                       const std::set<std::string>& defined) {
  const auto needs = library.version_needs.find(name);
  return needs == library.version_needs.end() || defined.empty() ? std::set<std::string>()
                                                                 : without(needs->second, defined);
}

const HostLibrary* with_soname(const std::vector<const HostLibrary*>& libraries,
                               const std::string& soname, std::uint16_t machine) {
  const auto is_it = [&](const HostLibrary* one) {
    return one->soname == soname && one->machine == machine;
  };
  const auto found = std::ranges::find_if(libraries, is_it);
  return found == libraries.end() ? nullptr : *found;
}

}  // namespace

bool is_of_ucx(std::string_view soname) {
  return std::ranges::any_of(std::array{"libucp.so.", "libuct.so.", "libucs.so.", "libucm.so."},
                             [&](const char* name) { return soname.starts_with(name); });
}

Misfit LibraryFit::against_need(const HostLibrary& library, const std::string& name,
                                const std::vector<const HostLibrary*>& beside) {
  using enum Misfit::Kind;
  if (const HostLibrary* ours = with_soname(beside, name, library.machine)) {
    const auto lacks = missing_versions(library, name, ours->version_definitions);
    if (lacks.empty()) return {};
    return {version,
            formatted("the node's {} needs {} of {}, which the node's {} lacks", library.soname,
                      *lacks.rbegin(), name, ours->source),
            name};
  }
  const ElfFile* of_image = image_.library(name, library.machine);
  if (of_image == nullptr) {
    if (name == "libc.so.6")
      return {no_glibc,
              formatted("the node's {} needs glibc, but the image's C library is {}",
                        library.soname, image_.libc(library.machine)),
              name};
    if (left_out_.contains(name))
      return {follows, formatted("the node's {} needs {}, which is left out", library.soname, name),
              name};
    if (library.searches && elsewhere_) return {};
    return {missing,
            formatted("the node's {} needs {}, which neither the image nor {} has", library.soname,
                      name, list_),
            name};
  }
  const auto lacks = missing_versions(library, name, of_image->version_definitions);
  if (lacks.empty()) return {};
  if (const std::string glibc = highest_glibc(lacks); !glibc.empty())
    return {old_glibc,
            formatted("the node's {} needs GLIBC_{}, but the image's C library goes up to {}",
                      library.soname, glibc, image_.libc(library.machine)),
            name};
  return {version,
          formatted("the node's {} needs {} of {}, which the image's lacks", library.soname,
                    *lacks.rbegin(), name),
          name};
}

Misfit LibraryFit::against(const HostLibrary& library,
                           const std::vector<const HostLibrary*>& beside) {
  if (!image_.has_loader(library.machine)) {
    return {Misfit::Kind::machine,
            formatted("the node's {} is for {}, but the image is not", library.soname,
                      machine_name(library.machine)),
            {}};
  }
  Misfit first;  // but for a C library that is too old, which no other library cures
  for (const std::string& name : library.needed) {
    Misfit misfit = against_need(library, name, beside);
    if (misfit.kind == Misfit::Kind::no_glibc || misfit.kind == Misfit::Kind::old_glibc)
      return misfit;
    if (!first) first = std::move(misfit);
  }
  if (first) return first;
  if (!spares_ || library.fallback) return {};
  if (Misfit misfit = against_other_release(library, beside)) return misfit;
  return against_users(library, beside);
}

/// UCX comes from the node as a whole, or not at all; and not where the image's is newer.
Misfit LibraryFit::against_other_release(const HostLibrary& library,
                                         const std::vector<const HostLibrary*>& beside) {
  if (!is_of_ucx(library.soname)) return {};
  if (const auto other = std::ranges::find_if(left_out_, is_of_ucx); other != left_out_.end())
    return {Misfit::Kind::follows,
            formatted("the node's {} goes with {}, which is left out", library.soname, *other),
            *other};
  for (const std::string& name : library.needed) {
    if (is_of_ucx(name) && with_soname(beside, name, library.machine) == nullptr)
      return {Misfit::Kind::missing,
              formatted("the node's {} needs {} of its own release, which {} does not name",
                        library.soname, name, list_),
              name};
  }
  for (const ImageLibrary& one :
       image_.by_linker_name(linker_name(library.soname), library.machine)) {
    const auto of_image = image_.functions(one.path, kFunctionsOfUcx);
    const auto lost = without(of_image, library.functions);
    // Its inner functions are exported, too: a newer release has lost some, and won more.
    if (one.soname != library.soname || lost.size() <= without(library.functions, of_image).size())
      continue;
    return {Misfit::Kind::breaks,
            formatted("the node's {} is older than the image's: it lacks {} of its functions",
                      library.soname, lost.size()),
            library.soname};
  }
  return {};
}

/// The image's libraries for MPI, UCX and fabrics, and what these need, without those that are
/// replaced as well: they would not be loaded any more.
Misfit LibraryFit::against_users(const HostLibrary& library,
                                 const std::vector<const HostLibrary*>& beside) {
  constexpr std::array<const char*, 8> kTalking{"libmpi.so",  "libmpich.so",  "libopen-pal.so",
                                                "libucp.so",  "libfabric.so", "librdmacm.so",
                                                "libpsm2.so", "libibmad.so"};
  constexpr std::size_t kMostSeen = 256;
  const auto lost = all_lost_with(library);
  if (lost.empty()) return {};
  std::vector<std::string> seen;
  const auto see = [&](const std::string& soname) {
    if (seen.size() < kMostSeen && std::ranges::find(seen, soname) == seen.end())
      seen.push_back(soname);
  };
  for (const char* name : kTalking) {
    for (const ImageLibrary& one : image_.by_linker_name(name, library.machine)) see(one.soname);
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const ElfFile* elf = with_soname(beside, seen[i], library.machine) == nullptr
                             ? image_.library(seen[i], library.machine)
                             : nullptr;
    if (elf == nullptr) continue;
    for (const std::string& name : elf->needed) see(name);
    if (!elf->version_needs.contains(library.soname)) continue;
    const auto& needs = elf->version_needs.at(library.soname);
    const auto missing = std::ranges::find_if(
        needs, [&](const std::string& version) { return lost.contains(version); });
    if (missing == needs.end()) continue;
    return {Misfit::Kind::breaks,
            formatted("the node's {} lacks {}, which the image's {} needs", library.soname,
                      *missing, seen[i]),
            library.soname};
  }
  return {};
}

void LibraryFit::add_fallbacks(const std::vector<HostLibrary>& libraries,
                               std::vector<const HostLibrary*>& chosen) {
  std::vector<const HostLibrary*> fallbacks;
  for (const HostLibrary& library : libraries) {
    if (library.fallback) fallbacks.push_back(&library);
  }
  for (std::size_t i = 0; i < chosen.size() && !fallbacks.empty(); ++i) {
    for (const std::string& name : chosen[i]->needed) {
      const HostLibrary* fallback = with_soname(fallbacks, name, chosen[i]->machine);
      if (fallback == nullptr || with_soname(chosen, name, chosen[i]->machine) != nullptr) continue;
      if (image_.library(name, fallback->machine) == nullptr) chosen.push_back(fallback);
    }
  }
}

LibraryFit::Choice LibraryFit::choose(const std::vector<HostLibrary>& libraries) {
  Choice choice;
  for (const HostLibrary& library : libraries) {
    if (!library.fallback) choice.kept.push_back(&library);
  }
  add_fallbacks(libraries, choice.kept);
  for (bool changed = true; changed;) {
    changed = false;
    const auto beside = choice.kept;
    std::erase_if(choice.kept, [&](const HostLibrary* library) {
      Misfit misfit = against(*library, beside);
      if (!misfit) return false;
      choice.left_out.emplace_back(library, std::move(misfit));
      left_out_.insert(library->soname);
      return changed = true;
    });
  }
  return choice;
}

std::set<std::string> LibraryFit::lost_with(const HostLibrary& library) {
  auto lost = all_lost_with(library);
  std::erase_if(lost, [](const std::string& version) {
    return version.find("PRIVATE") != std::string::npos;
  });
  return lost;
}

std::set<std::string> LibraryFit::all_lost_with(const HostLibrary& library) {
  const ElfFile* of_image = image_.library(library.soname, library.machine);
  if (of_image == nullptr || library.version_definitions.empty()) return {};
  return without(of_image->version_definitions, library.version_definitions);
}

}  // namespace spc
