#include "hooks/mpi/mpi_abi.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <utility>

#include "base/format.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/image_loader.hpp"
#include "hooks/mpi/host_library.hpp"
#include "hooks/mpi/image_libraries.hpp"

namespace spc {
namespace {

constexpr char kMpiDirectory[] = "/usr/lib/spank-container/mpi/";
constexpr char kRemembered[] = "library ";  ///< before the number of one
constexpr char kImagesOwn[] = "--container-mpi=image keeps the image's MPI";

/// Debian and Ubuntu call the libraries of MPICH by other names, which their programs then need.
std::string other_name_of(std::string_view linker_name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kNames{
      {{"libmpi.so", "libmpich.so"}, {"libmpifort.so", "libmpichfort.so"}, {"libmpicxx.so", "libmpichcxx.so"}}};
  for (const auto& [everywhere, debian] : kNames) {
    if (linker_name == everywhere) return std::string(debian);
    if (linker_name == debian) return std::string(everywhere);
  }
  return "";
}

bool wants_host_mpi(const HookContext& context) {
  return (context.mpi.empty() ? context.setting("mpi", "image") : context.mpi) == "host";
}

/// SRC[:DST[:FLAGS]] as in `mounts`, with the flags ro and nofail.
MountEdit mount_of(std::string_view text) {
  const auto take = [&](char separator) {
    const std::string part(text.substr(0, text.find(separator)));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    return part;
  };
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

Result<Edits> prepare_host_mpi(const HookContext& context) {
  Edits edits;
  const auto libraries = context.settings_of("mpi_libraries");
  if (libraries.empty()) {
    edits.refusal = formatted(
        "the node's MPI is requested, but this site has not configured it"
        " (hint: {}; an administrator can set mpi_libraries in config.toml)",
        kImagesOwn);
    return edits;
  }
  const auto add = [&](const std::string& path, bool dependency) -> Result<void> {
    auto library = SPC_TRY(HostLibrary::read(context.host_root, path));
    library.dependency = dependency;
    const std::string target = kMpiDirectory + library.file_name();
    const auto is_it = [&](const MountEdit& mount) { return mount.target == target; };
    if (std::any_of(edits.mounts.begin(), edits.mounts.end(), is_it)) return {};
    edits.remembered[kRemembered + std::to_string(edits.mounts.size())] = library.serialize();
    edits.mounts.push_back({library.source, target});
    return {};
  };
  for (const std::string& path : libraries) SPC_TRY_DURING("mpi_libraries", add(path, false));
  for (const std::string& path : context.settings_of("mpi_dependencies")) SPC_TRY_DURING("mpi_dependencies", add(path, true));
  for (const std::string& text : context.settings_of("mpi_mounts")) edits.mounts.push_back(mount_of(text));
  return edits;
}

/// What decides whether the node's libraries can be used in this image, and says why not.
class Judge {
 public:
  Judge(const HookContext& context, const std::vector<HostLibrary>& libraries)
      : level_(abi_level_of(context.setting("mpi_abi", "full"))),
        libraries_(libraries),
        image_(context),
        more_mounts_(!context.settings_of("mpi_mounts").empty()) {}

  /// Whether the image has an MPI, of whatever ABI.
  [[nodiscard]] bool image_has_mpi() const {
    return std::any_of(libraries_.begin(), libraries_.end(), [&](const HostLibrary& library) {
      const std::string name = linker_name(library.soname);
      const std::string other_name = other_name_of(name);
      return !library.dependency && (!image_.by_linker_name(name, library.machine).empty() ||
                                     (!other_name.empty() && !image_.by_linker_name(other_name, library.machine).empty()));
    });
  }

  /// The first reason against it; empty: there is none.
  std::string reason_against(Edits& edits) {
    for (const HostLibrary& library : libraries_) {
      if (!image_.has_loader(library.machine)) {
        return formatted("the node's {} is for {}, but the image is not", library.soname,
                         machine_name(library.machine));
      }
      std::string reason = library.dependency ? "" : against_abi(library, edits);
      if (reason.empty()) reason = against_needs(library, edits);
      if (!reason.empty()) return reason;
    }
    return "";
  }

 private:
  std::string against_abi(const HostLibrary& library, Edits& edits) {
    const std::string name = linker_name(library.soname);
    const std::string other_name = other_name_of(name);
    const std::string other_soname = other_name.empty() ? "" : other_name + library.soname.substr(name.size());
    const auto of_image = image_.by_linker_name(name, library.machine);
    auto replaced = of_image;
    if (!other_name.empty()) std::ranges::move(image_.by_linker_name(other_name, library.machine), std::back_inserter(replaced));
    std::erase_if(replaced, [&](const auto& one) { return one.soname != library.soname && one.soname != other_soname; });
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
      if (one.soname == other_soname)
        edits.libraries.push_back({one.soname, kMpiDirectory + library.file_name(), true, library.machine});
    }
    return "";
  }

  std::string against_version(const HostLibrary& library, const ImageLibrary& replaced, Edits& edits) {
    const std::string real = image_.file_name(replaced.path);
    switch (abi_fit(library_version(library.file_name()), library_version(real), level_)) {
      case AbiFit::no:
        return formatted(
            "the node's {} does not match the image's {} as required by mpi_abi = {} (hint: {})",
            library.file_name(), real, word(), kImagesOwn);
      case AbiFit::older:
        edits.warnings.push_back(formatted(
            "the node's {} is older than the image's {}: programs that need newer functions may fail",
            library.file_name(), real));
        break;
      case AbiFit::fits: break;
    }
    edits.notes.push_back(formatted("the node's {} replaces the image's {} ({})", library.source,
                                    replaced.path, real));
    return "";
  }

  /// Symbols by their versions, which the loader would miss when a program starts.
  std::string against_needs(const HostLibrary& library, Edits& edits) {
    for (const std::string& name : library.needed) {
      const auto ours = std::find_if(libraries_.begin(), libraries_.end(), [&](const auto& one) { return one.soname == name; });
      if (ours != libraries_.end()) continue;
      const ElfFile* of_image = image_.library(name, library.machine);
      if (of_image == nullptr) {
        if (name == "libc.so.6") {
          return formatted("the node's {} needs glibc, but the image's C library is {} (hint: {})",
                           library.soname, image_.libc(library.machine), kImagesOwn);
        }
        if (library.searches || more_mounts_) continue;
        return formatted(
            "the node's {} needs {}, which neither the image nor mpi_dependencies has (hint: {})",
            library.soname, name, kImagesOwn);
      }
      const auto needs = library.version_needs.find(name);
      if (needs == library.version_needs.end()) continue;
      std::set<std::string> missing;
      std::set_difference(needs->second.begin(), needs->second.end(), of_image->version_definitions.begin(),
                          of_image->version_definitions.end(), std::inserter(missing, missing.end()));
      if (missing.empty()) continue;
      if (const std::string glibc = highest_glibc(missing); !glibc.empty()) {
        return formatted(
            "the node's {} needs GLIBC_{}, but the image's C library is {}"
            " (hint: {}; or use an image of a newer distribution)",
            library.soname, glibc, image_.libc(library.machine), kImagesOwn);
      }
      return formatted(
          "the node's {} needs {} of {}, which the image's lacks"
          " (hint: {}; an administrator can add the node's {} to mpi_dependencies)",
          library.soname, *missing.rbegin(), name, kImagesOwn, name);
    }
    if (library.dependency) note_newer(library, edits);
    return "";
  }

  /// The image's own programs get this library, too.
  void note_newer(const HostLibrary& library, Edits& edits) {
    const ElfFile* of_image = image_.library(library.soname, library.machine);
    if (of_image == nullptr) return;
    std::set<std::string> lost;
    std::set_difference(of_image->version_definitions.begin(), of_image->version_definitions.end(),
                        library.version_definitions.begin(), library.version_definitions.end(), std::inserter(lost, lost.end()));
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
  ImageLibraries image_;
  bool more_mounts_;
};

Result<void> create_host_mpi(const HookContext& context, Edits& edits) {
  std::vector<HostLibrary> libraries;
  for (std::size_t i = 0;; ++i) {
    const auto found = edits.remembered.find(kRemembered + std::to_string(i));
    if (found == edits.remembered.end()) break;
    libraries.push_back(HostLibrary::parse(found->second));
  }
  Judge judge(context, libraries);
  if (context.mpi.empty() && !judge.image_has_mpi()) {  // the site's word is for all images, with MPI or without
    for (MountEdit& mount : edits.mounts) mount.target.clear();
    edits.notes.emplace_back("the image has no MPI; the node's is added only with --container-mpi=host");
    return {};
  }
  edits.refusal = printable(judge.reason_against(edits));
  // Names of the image's files are in them.
  for (std::string& note : edits.notes) note = printable(note);
  if (!edits.refusal.empty()) return {};
  for (const HostLibrary& library : libraries) {
    edits.libraries.push_back({library.soname, kMpiDirectory + library.file_name(), true, library.machine});
  }
  // The loader looks there before it looks into the cache.
  if (const std::string* path = context.of_image("LD_LIBRARY_PATH"); path != nullptr && !path->empty()) {
    edits.environment.prepend["LD_LIBRARY_PATH"] = std::string(kMpiDirectory, sizeof kMpiDirectory - 2);
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
