#include <fcntl.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/format.hpp"
#include "base/text.hpp"
#include "hooks/hook.hpp"
#include "hooks/libraries/libraries.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/loader.hpp"
#include "hooks/mpi/mpi_hooks.hpp"

namespace spc {

// --- mpi places ---

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
    // mpirun of Open MPI 5 passes PMIx's directory, where the image's Open MPI 4 finds nothing.
    const bool is_for_pmix = name == "OMPI_MCA_mca_base_component_path" && first.ends_with("/pmix");
    if (of_job == nullptr || *of_job != value || !first.starts_with('/') ||
        (!is_for_pmix && context.open_in_image(first.c_str(), O_PATH)))
      continue;
    edits.environment.unset.insert(name);
    names.push_back(name);
  }
  if (!names.empty())
    edits.notes.push_back(
        formatted("of an MPI of the host that the container does not have: {} {} unset",
                  joined(names, ", "), names.size() == 1 ? "is" : "are"));
}

// --- image mpi ---

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

/// Returns whether the cache contains the name. A name ends with a NUL. The NUL of another name or,
/// at the end of a path, a slash precedes it.
bool in_cache(std::string_view cache, std::string_view soname) {
  const std::string name = std::string(soname) + '\0';
  for (auto at = cache.find(name); at != std::string_view::npos; at = cache.find(name, at + 1)) {
    if (at > 0 && (cache[at - 1] == '\0' || cache[at - 1] == '/')) return true;
  }
  return false;
}

/// Returns the directories of an image's LD_LIBRARY_PATH.
std::vector<std::string> listed_directories(const HookContext& context) {
  const std::string* listed = context.of_image("LD_LIBRARY_PATH");
  auto directories = parts_of(listed == nullptr ? "" : *listed, ':');
  std::erase_if(directories,
                [](const std::string& directory) { return !directory.starts_with('/'); });
  return directories;
}

/// Returns the directories that the image has, of those in which it may keep libraries. Most images
/// have few, and each lookup in a cold image reads its directories.
std::vector<std::string> library_directories(const HookContext& context) {
  auto directories = listed_directories(context);
  directories.insert(directories.begin(), kMpiDirectories.begin(), kMpiDirectories.end());
  std::erase_if(directories,
                [&](const std::string& directory) { return !is_there(context, directory, ""); });
  return directories;
}

bool image_has(const HookContext& context, const std::string& cache,
               const std::vector<std::string>& directories, std::string_view soname) {
  return in_cache(cache, soname) ||
         std::ranges::any_of(directories, [&](const std::string& directory) {
           return is_there(context, directory, soname);
         });
}

std::string cache_of(const HookContext& context) {
  return context.image_file("/etc/ld.so.cache", 4 << 20).value_or("");
}

}  // namespace

bool image_has_library(const HookContext& context, std::string_view soname) {
  return context.open_in_image &&
         image_has(context, cache_of(context), library_directories(context), soname);
}

ImageMpi ImageMpi::of(const HookContext& context) {
  ImageMpi mpi;
  if (!context.open_in_image) return mpi;
  const std::string cache = cache_of(context);
  const auto directories = library_directories(context);
  const auto has = [&](std::string_view soname) {
    return image_has(context, cache, directories, soname);
  };
  mpi.open_mpi = has("libmpi.so.40");
  mpi.mpich = has("libmpi.so.12") || has("libmpich.so.12");
  mpi.open_mpi_5 = mpi.open_mpi && has("libopen-pal.so.80");
  mpi.pmix = has("libpmix.so.2");
  mpi.pmi2 = has("libpmi2.so.0");
  mpi.cray_pmi = has("libpals.so.0") || is_there(context, "/opt/cray/pe/pmi", "");
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

// --- mpi abi ---

namespace {

constexpr char kMpiDirectory[] = "/usr/lib/spank-container/mpi/";
/// not in LD_LIBRARY_PATH
constexpr char kMpiFallbacks[] = "/usr/lib/spank-container/mpi/fallback/";
constexpr char kRemembered[] = "library ";  ///< prefix of a library's number
constexpr char kImagesOwn[] = "--container-mpi=image keeps the image's MPI";

/// Returns the Debian and Ubuntu name of a library of MPICH, which their programs need.
std::string other_name_of(std::string_view linker_name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kNames{
      {{"libmpi.so", "libmpich.so"},
       {"libmpifort.so", "libmpichfort.so"},
       {"libmpicxx.so", "libmpichcxx.so"}}};
  for (const auto& [everywhere, debian] : kNames) {
    if (linker_name == everywhere) return std::string(debian);
    if (linker_name == debian) return std::string(everywhere);
  }
  return "";
}

bool wants_host_mpi(const HookContext& context) {
  return (context.mpi.empty() ? context.setting("mpi", "image") : context.mpi) == "host";
}

/// Parses SRC[:DST[:FLAGS]] as in `mounts`, with the flags ro and nofail.
MountEdit mount_of(std::string_view text) {
  const auto take = [&](char separator) { return std::string(next_part(text, separator)); };
  MountEdit mount;
  mount.source = take(':');
  mount.target = text.starts_with('/') ? take(':') : mount.source;
  mount.read_only = false;
  while (!text.empty()) {
    const std::string flag = take('+');
    if (flag == "ro") mount.read_only = true;
    if (flag == "nofail") mount.optional = true;
  }
  return mount;
}

std::string place_of(const HostLibrary& library) {
  return (library.fallback ? kMpiFallbacks : kMpiDirectory) + library.file_name();
}

/// Returns a clash between `ours` and the libraries of 99-fabric, which are mounted in the same
/// container. Ignores libraries that cannot be read: 99-fabric does not mount and reports them.
[[gnu::cold]] std::string clash_with_fabric(const HookContext& context,
                                            std::vector<HostLibrary> ours) {
  if (std::string clash = clash_of(ours); !clash.empty()) return clash;
  if (context.setting("fabric", "auto") == "off") return {};
  for (const std::string& path : context.settings_of("fabric_libraries")) {
    if (auto library = HostLibrary::read(context.host_root, path))
      ours.push_back(*std::move(library));
  }
  return clash_of(ours);
}

[[gnu::cold]] Result<Edits> prepare_host_mpi(const HookContext& context) {
  Edits edits;
  std::vector<HostLibrary> all;
  const auto libraries = context.settings_of("mpi_libraries");
  if (libraries.empty()) {
    edits.refusal = formatted(
        "the node's MPI is requested, but this site has not configured it"
        " (hint: {}; an administrator can set mpi_libraries in config.toml)",
        kImagesOwn);
    return edits;
  }

  // Requests the mount of one library and remembers its properties for `create`.
  enum class Role { replaces, dependency, fallback };
  const bool compares_functions =
      abi_level_of(context.setting("mpi_abi", "full")) == AbiLevel::major;
  const auto add = [&](const std::string& path, Role role) -> Result<void> {
    auto library = SPC_TRY(HostLibrary::read(
        context.host_root, path, role == Role::replaces && compares_functions ? "MPI_" : ""));
    if (!library.named)
      return Error(ErrorKind::invalid,
                   in_quotes(path) + " of the node is not a shared library: it has no soname");
    library.dependency = role == Role::dependency;
    library.fallback = role == Role::fallback;
    all.push_back(library);
    const std::string target = place_of(library);
    const auto is_it = [&](const MountEdit& mount) { return mount.target == target; };
    if (std::any_of(edits.mounts.begin(), edits.mounts.end(), is_it)) return {};
    edits.remembered[kRemembered + std::to_string(edits.mounts.size())] = library.serialize();
    edits.mounts.push_back({library.source, target});
    return {};
  };

  for (const std::string& path : libraries)
    SPC_TRY_DURING("mpi_libraries", add(path, Role::replaces));
  for (const std::string& path : context.settings_of("mpi_dependencies"))
    SPC_TRY_DURING("mpi_dependencies", add(path, Role::dependency));
  for (const std::string& path : context.settings_of("fallback_libraries"))
    SPC_TRY_DURING("fallback_libraries", add(path, Role::fallback));
  for (const std::string& text : context.settings_of("mpi_mounts"))
    edits.mounts.push_back(mount_of(text));
  edits.refusal = clash_with_fabric(context, std::move(all));
  return edits;
}

/// Decides whether the node's libraries can be used in this image, and reports why not.
class Judge {
 public:
  Judge(const HookContext& context, const std::vector<HostLibrary>& libraries)
      : level_(abi_level_of(context.setting("mpi_abi", "full"))),
        libraries_(libraries),
        fit_(context, "mpi_dependencies", !context.settings_of("mpi_mounts").empty()),
        image_(fit_.image()) {}

  /// Returns whether the image has an MPI of any ABI.
  [[nodiscard]] bool image_has_mpi() const {
    return !mpi_of_image().empty() ||
           std::ranges::any_of(libraries_, [&](const HostLibrary& library) {
             return is_mpi(library) &&
                    !image_.by_linker_name(linker_name(library.soname), library.machine).empty();
           });
  }

  /// Returns the first reason not to use the node's MPI. If it is empty, `edits` has the libraries.
  [[gnu::cold]] std::string reason_against(Edits& edits) {
    const LibraryFit::Choice choice = fit_.choose(libraries_);
    for (const auto& [library, misfit] : choice.left_out) {
      if (misfit.kind == Misfit::Kind::machine) return misfit.text;
    }
    bool replaces = false;
    for (const HostLibrary& library : libraries_) {
      if (!is_mpi(library)) continue;
      if (auto reason = against_abi(library, edits, replaces); !reason.empty()) return reason;
    }
    if (const std::string mpi = mpi_of_image(); !replaces && !mpi.empty())
      return none_replaces(mpi);
    if (!choice.left_out.empty()) return with_hint(choice.left_out.front().second);
    for (const HostLibrary* library : choice.kept) {
      if (library->dependency) note_newer(*library, edits);
      edits.libraries.push_back(
          {library->soname, place_of(*library), !library->fallback, library->machine});
    }
    return "";
  }

 private:
  static bool is_mpi(const HostLibrary& library) {
    return !library.dependency && !library.fallback;
  }

  /// Returns the soname of the image's MPI library; empty if it has none.
  [[nodiscard]] std::string mpi_of_image() const {
    for (const char* name : {"libmpi.so", "libmpich.so"}) {
      for (const HostLibrary& library : libraries_) {
        const auto found = image_.by_linker_name(name, library.machine);
        if (!found.empty()) return found.front().soname;
      }
    }
    return {};
  }

  /// Returns the reason not to use libraries of which none replaces the image's MPI, such as Cray's
  /// own libmpi_gnu_123.so.12: no program would find them.
  [[nodiscard]] std::string none_replaces(const std::string& mpi) const {
    return formatted(
        "none of mpi_libraries replaces the image's {}: the node's {} has another name"
        " (hint: {}; an administrator can name one with the soname {}, on Cray in lib-abi-mpich)",
        mpi, libraries_.front().soname, kImagesOwn, mpi);
  }

  static std::string with_hint(const Misfit& misfit) {
    std::string more;
    if (misfit.kind == Misfit::Kind::old_glibc) more = "; or use an image of a newer distribution";
    if (misfit.kind == Misfit::Kind::version)
      more = formatted("; an administrator can add the node's {} to mpi_dependencies", misfit.of);
    return formatted("{} (hint: {}{})", misfit.text, kImagesOwn, more);
  }

  std::string against_abi(const HostLibrary& library, Edits& edits, bool& replaces) {
    const std::string name = linker_name(library.soname);
    const std::string other_name = other_name_of(name);
    const std::string other_soname =
        other_name.empty() ? "" : other_name + library.soname.substr(name.size());
    const auto of_image = image_.by_linker_name(name, library.machine);
    auto replaced = of_image;
    if (!other_name.empty())
      std::ranges::move(image_.by_linker_name(other_name, library.machine),
                        std::back_inserter(replaced));
    std::erase_if(replaced, [&](const auto& one) {
      return one.soname != library.soname && one.soname != other_soname;
    });
    if (replaced.empty() && !of_image.empty()) {
      return formatted(
          "the node's {} cannot replace the image's {}: different ABIs"
          " (hint: {}; Wi4MPI and mpixlate translate between ABIs)",
          library.soname, of_image.front().soname, kImagesOwn);
    }
    if (replaced.empty())
      edits.notes.push_back(
          formatted("the image has no {}, the node's {} is added", name, library.soname));
    for (const ImageLibrary& one : of_image) {
      if (one.soname != library.soname)
        edits.notes.push_back(
            formatted("programs for {} keep the image's {}", one.soname, one.path));
    }
    for (const ImageLibrary& one : replaced) {
      if (auto reason = against_version(library, one, edits); !reason.empty()) return reason;
      replaces = true;
      if (one.soname == other_soname)
        edits.libraries.push_back(
            {one.soname, kMpiDirectory + library.file_name(), true, library.machine});
    }
    return "";
  }

  std::string against_version(const HostLibrary& library, const ImageLibrary& replaced,
                              Edits& edits) {
    const std::string real = image_.file_name(replaced.path);
    switch (abi_fit(library_version(library.file_name()), library_version(real), level_)) {
      case AbiFit::no:
        return formatted(
            "the node's {} does not match the image's {} as required by mpi_abi = {} (hint: {})",
            library.file_name(), real, word(), kImagesOwn);
      case AbiFit::older:
        edits.warnings.push_back(formatted("the node's {} is older than the image's {}: {}",
                                           library.file_name(), real,
                                           functions_lost(library, replaced.path)));
        break;
      case AbiFit::fits: break;
    }
    edits.notes.push_back(formatted("the node's {} replaces the image's {} ({})", library.source,
                                    replaced.path, real));
    return "";
  }

  /// Returns the functions of the image's library that the node's lacks, by name, so that users can
  /// tell whether a program needs one.
  [[nodiscard]] std::string functions_lost(const HostLibrary& library,
                                           const std::string& replaced) const {
    constexpr std::size_t kNamed = 4;
    std::vector<std::string> lost;
    const auto of_image = image_.functions(replaced, "MPI_");
    std::ranges::set_difference(of_image, library.functions, std::back_inserter(lost));
    if (lost.empty() || library.functions.empty())
      return "programs that need newer functions may fail";
    const std::size_t more = lost.size() - std::min(lost.size(), kNamed);
    lost.resize(lost.size() - more);
    return formatted("programs that call {}{} will fail", joined(lost, ", "),
                     more == 0 ? "" : formatted(" or {} more", more));
  }

  /// Warns that the image's own programs get this library as well, if it is older than the image's.
  void note_newer(const HostLibrary& library, Edits& edits) {
    const auto lost = fit_.lost_with(library);
    if (lost.empty()) return;
    edits.warnings.push_back(formatted(
        "the node's {} is older than the image's: programs that need its {} will not start",
        library.soname, *lost.rbegin()));
  }

  [[nodiscard]] const char* word() const {
    if (level_ == AbiLevel::major) return "major";
    return level_ == AbiLevel::full ? "full" : "strict";
  }

  AbiLevel level_;
  const std::vector<HostLibrary>& libraries_;
  LibraryFit fit_;
  ImageLibraries& image_;
};

/// Corrects variables with the paths of the image's MPI: the node's MPI would load the image's
/// components. If the job has such a variable, its value is used, because it belongs to the node's
/// MPI. mpi_env has precedence.
[[gnu::cold]] void correct_environment(const HookContext& context, Edits& edits) {
  auto& environment = edits.environment;
  for (const auto& [name, value] : context.image) {
    if (!is_place_of_mpi(name)) continue;
    if (const std::string* of_job = context.of_job(name)) {
      environment.set[name] = *of_job;
    } else {
      environment.unset.insert(name);
    }
    edits.notes.push_back(formatted("the image's {} is not that of the node's MPI", name));
  }
  for (const std::string& assignment : context.settings_of("mpi_env")) {
    const auto equals = assignment.find('=');
    environment.unset.erase(assignment.substr(0, equals));
    environment.set[assignment.substr(0, equals)] =
        assignment.substr(std::min(equals, assignment.size() - 1) + 1);
  }
}

/// Drops fallbacks that the image does not need.
void drop_unused(Edits& edits) {
  for (MountEdit& mount : edits.mounts) {
    const auto is_it = [&](const LibraryEdit& library) { return library.path == mount.target; };
    if (mount.target.starts_with(kMpiFallbacks) && std::ranges::none_of(edits.libraries, is_it))
      mount.target.clear();
  }
}

[[gnu::cold]] Result<void> create_host_mpi(const HookContext& context, Edits& edits) {
  std::vector<HostLibrary> libraries;
  for (std::size_t i = 0;; ++i) {
    const auto found = edits.remembered.find(kRemembered + std::to_string(i));
    if (found == edits.remembered.end()) break;
    libraries.push_back(HostLibrary::parse(found->second));
  }
  Judge judge(context, libraries);
  // The site's setting applies to all images, with MPI or without.
  if (context.mpi.empty() && !judge.image_has_mpi()) {
    for (MountEdit& mount : edits.mounts) mount.target.clear();
    edits.notes.emplace_back(
        "the image has no MPI; the node's is added only with --container-mpi=host");
    return {};
  }
  edits.refusal = printable(judge.reason_against(edits));
  // Notes contain names of the image's files, so escape them.
  for (std::string& note : edits.notes) note = printable(note);
  for (std::string& warning : edits.warnings) warning = printable(warning);
  if (!edits.refusal.empty()) return {};
  drop_unused(edits);
  correct_environment(context, edits);
  // The loader searches LD_LIBRARY_PATH before the cache.
  if (const std::string* path = context.of_image("LD_LIBRARY_PATH");
      path != nullptr && !path->empty()) {
    edits.environment.prepend["LD_LIBRARY_PATH"] =
        std::string(kMpiDirectory, sizeof kMpiDirectory - 2);
  }
  return {};
}

}  // namespace

const Hook mpi_abi_hook{
    .name = "70-mpi-abi",
    .says = "the node's MPI in place of the image's",
    .when = wants_host_mpi,
    .prepare = prepare_host_mpi,
    .create = create_host_mpi,
};

}  // namespace spc
