#include "hooks/libraries/libraries.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/hook.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/loader.hpp"

namespace spc {

// --- host library ---

namespace {

constexpr char kHint[] = "check the lists of libraries in config.toml";

}  // namespace

std::vector<unsigned> library_version(std::string_view file_name) {
  std::vector<unsigned> version;
  const auto extension = file_name.rfind(".so.");
  if (extension == std::string_view::npos) return version;
  for (std::string_view rest = file_name.substr(extension + 4); !rest.empty();) {
    const auto number = parse_number(next_part(rest, '.'));
    if (!number) break;
    version.push_back(*number);
  }
  return version;
}

std::string linker_name(std::string_view soname) {
  const auto extension = soname.rfind(".so");
  return std::string(extension == std::string_view::npos ? soname
                                                         : soname.substr(0, extension + 3));
}

std::string version_text(const std::vector<unsigned>& version) {
  std::string text;
  for (const unsigned part : version)
    text.append(text.empty() ? "" : ".").append(std::to_string(part));
  return text;
}

AbiLevel abi_level_of(std::string_view word) {
  if (word == "major") return AbiLevel::major;
  return word == "strict" ? AbiLevel::strict : AbiLevel::full;
}

AbiFit abi_fit(const std::vector<unsigned>& host, const std::vector<unsigned>& image,
               AbiLevel level) {
  if (host.empty() || image.empty())
    return level == AbiLevel::strict && host != image ? AbiFit::no : AbiFit::fits;
  if (host[0] != image[0]) return AbiFit::no;
  if (level == AbiLevel::strict) return host == image ? AbiFit::fits : AbiFit::no;
  if (host.size() < 2 || image.size() < 2 || host[1] >= image[1]) return AbiFit::fits;
  return level == AbiLevel::major ? AbiFit::older : AbiFit::no;
}

std::string HostLibrary::file_name() const { return source.substr(source.rfind('/') + 1); }

Result<HostLibrary> HostLibrary::read(const std::string& host_root, const std::string& path,
                                      std::string_view prefix) {
  const std::string at = host_root + path;
  char resolved[PATH_MAX];
  if (::realpath(at.c_str(), resolved) == nullptr)
    return Error::from_errno(errno, formatted("find library {} of the node", in_quotes(path)))
        .hint(kHint);
  const UniqueFd file(::open(resolved, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file)
    return Error::from_errno(errno, formatted("open library {} of the node", in_quotes(path)))
        .hint(kHint);
  auto elf =
      SPC_TRY_DURING(formatted("library {} of the node", in_quotes(path)), read_elf(file.get()));
  if (elf.type != ET_DYN || !elf.interpreter.empty())
    return Error(ErrorKind::invalid, in_quotes(path) + " of the node is not a shared library")
        .hint(kHint);
  HostLibrary library;
  library.source = resolved;
  char root[PATH_MAX];
  if (!host_root.empty() && ::realpath(host_root.c_str(), root) != nullptr &&
      library.source.starts_with(root)) {
    library.source.erase(0, std::string_view(root).size());
  }
  library.named = !elf.soname.empty();
  library.soname = library.named ? std::move(elf.soname) : path.substr(path.rfind('/') + 1);
  library.machine = elf.machine;
  library.searches = !elf.rpath.empty() || !elf.runpath.empty();
  library.needed = std::move(elf.needed);
  library.version_needs = std::move(elf.version_needs);
  library.version_definitions = std::move(elf.version_definitions);
  if (!prefix.empty()) library.functions = exported_functions(file.get(), prefix);
  return library;
}

std::string HostLibrary::serialize() const {
  std::string text = formatted("source {}\nsoname {}\nmachine {}\n", source, soname, machine);
  if (dependency) text += "dependency yes\n";
  if (fallback) text += "fallback yes\n";
  if (searches) text += "searches yes\n";
  for (const std::string& name : needed) text += formatted("needs {}\n", name);
  for (const auto& [file, versions] : version_needs) {
    text += formatted("of {}\n", file);
    for (const std::string& version : versions) text += formatted("version {}\n", version);
  }
  for (const std::string& version : version_definitions) text += formatted("defines {}\n", version);
  for (const std::string& function : functions) text += formatted("exports {}\n", function);
  return text;
}

HostLibrary HostLibrary::parse(std::string_view text) {
  HostLibrary library;
  std::string file;
  while (!text.empty()) {
    const std::string_view line = next_part(text, '\n');
    const std::string_view key = line.substr(0, line.find(' '));
    const std::string value(line.substr(std::min(key.size() + 1, line.size())));
    if (key == "source") library.source = value;
    if (key == "soname") library.soname = value;
    if (key == "machine")
      library.machine = static_cast<std::uint16_t>(parse_number(value).value_or(0));
    if (key == "dependency") library.dependency = true;
    if (key == "fallback") library.fallback = true;
    if (key == "searches") library.searches = true;
    if (key == "needs") library.needed.push_back(value);
    if (key == "of") file = value;
    if (key == "version") library.version_needs[file].insert(value);
    if (key == "defines") library.version_definitions.insert(value);
    if (key == "exports") library.functions.insert(value);
  }
  return library;
}

std::string clash_of(const std::vector<HostLibrary>& libraries) {
  for (auto one = libraries.begin(); one != libraries.end(); ++one) {
    const auto other = std::find_if(libraries.begin(), one, [&](const HostLibrary& before) {
      return before.soname == one->soname && before.machine == one->machine &&
             before.fallback == one->fallback && before.source != one->source;
    });
    if (other != one)
      return formatted(
          "{} and {} are both {}, and a program loads one only (hint: name one of them)",
          in_quotes(other->source), in_quotes(one->source), one->soname);
  }
  return {};
}

// --- image libraries ---

namespace {

constexpr std::size_t kMostDirectories = 16;

/// Returns the first directories of a list like LD_LIBRARY_PATH.
std::vector<std::string> directories_in(const std::string& list) {
  auto directories = parts_of(list, ':');
  std::erase_if(directories, [](const std::string& path) { return !path.starts_with('/'); });
  if (directories.size() > kMostDirectories) directories.resize(kMostDirectories);
  return directories;
}

}  // namespace

ImageLibraries::ImageLibraries(const HookContext& context)
    : context_(context), loaders_(loaders_of_image(context)) {
  if (const std::string* path = context.of_image("LD_LIBRARY_PATH"))
    directories_ = directories_in(*path);
  for (const std::string& directory : directories_)
    std::ranges::move(libraries_in(context, directory), std::back_inserter(in_directories_));
  const UniqueFd file = context.open_in_image("/etc/ld.so.cache", O_RDONLY);
  if (!file) return;
  auto cache = LdCache::read(file.get());
  if (!cache) return;
  // A restarted container still has the entries of its last start: remove them.
  cache->remove_if(
      [](const LdCache::Entry& entry) { return entry.path.starts_with(kNodeLibraries); });
  cache_ = *std::move(cache);
}

bool ImageLibraries::has_loader(std::uint16_t machine) const {
  return loaders_.empty() ||
         std::any_of(loaders_.begin(), loaders_.end(),
                     [&](const ImageLoader& loader) { return loader.machine == machine; });
}

std::vector<ImageLibrary> ImageLibraries::by_linker_name(std::string_view name,
                                                         std::uint16_t machine) const {
  std::map<std::string, std::string> paths;
  for (const ImageLibrary& library : in_directories_) {
    if (library.machine == machine && linker_name(library.soname) == name)
      paths.emplace(library.soname, library.path);
  }
  const auto flags = cache_flags_of(machine);
  if (cache_ && flags) {
    for (const LdCache::Entry& entry : cache_->entries()) {
      if (entry.flags == *flags && entry.soname.starts_with(name) &&
          linker_name(entry.soname) == name) {
        paths.emplace(entry.soname, entry.path);
      }
    }
  }
  // The loader also searches these directories for names that the cache lacks.
  for (const std::string& directory : default_library_directories(machine)) {
    for (const ImageLibrary& library : libraries_in(context_, directory, name)) {
      if (library.machine == machine && linker_name(library.soname) == name)
        paths.emplace(library.soname, library.path);
    }
  }
  // A soname without a number is a linker script or a module, and guarantees no ABI.
  std::vector<ImageLibrary> found;
  for (const auto& [soname, path] : paths) {
    if (!library_version(soname).empty()) found.push_back({soname, path, machine});
  }
  return found;
}

std::optional<ElfFile> ImageLibraries::read(const std::string& path, std::uint16_t machine) const {
  const UniqueFd file = context_.open_regular(path.c_str());
  if (!file) return std::nullopt;
  auto elf = read_elf(file.get());
  return elf && elf->machine == machine ? std::optional(*std::move(elf)) : std::nullopt;
}

std::optional<ElfFile> ImageLibraries::find(const std::string& soname,
                                            std::uint16_t machine) const {
  std::vector<std::string> paths;
  for (const std::string& directory : directories_) paths.push_back(directory + "/" + soname);
  const auto flags = cache_flags_of(machine);
  if (const auto* entry = cache_ && flags ? cache_->find(soname, *flags) : nullptr)
    paths.emplace_back(entry->path);
  for (const std::string& directory : default_library_directories(machine))
    paths.push_back(directory + "/" + soname);
  for (const std::string& path : paths) {
    if (auto elf = read(path, machine)) return elf;
  }
  return std::nullopt;
}

const ElfFile* ImageLibraries::library(const std::string& soname, std::uint16_t machine) {
  const auto [found, is_new] = read_.try_emplace({soname, machine});
  if (is_new) found->second = find(soname, machine);
  return found->second ? &*found->second : nullptr;
}

std::set<std::string> ImageLibraries::functions(const std::string& path,
                                                std::string_view prefix) const {
  const UniqueFd file = context_.open_in_image(path.c_str(), O_RDONLY);
  return file ? exported_functions(file.get(), prefix) : std::set<std::string>();
}

std::string ImageLibraries::libc(std::uint16_t machine) {
  if (const ElfFile* libc = library("libc.so.6", machine)) {
    const std::string version = highest_glibc(libc->version_definitions);
    if (!version.empty()) return version;
  }
  const bool musl = std::any_of(loaders_.begin(), loaders_.end(),
                                [](const ImageLoader& loader) { return loader.musl; });
  return musl ? "musl" : "another";
}

std::string ImageLibraries::file_name(const std::string& path) const {
  std::string directory = path.substr(0, path.rfind('/') + 1);
  std::string name = path.substr(directory.size());
  for (int links = 0; links < 8; ++links) {
    const UniqueFd link = context_.open_in_image((directory + name).c_str(), O_PATH | O_NOFOLLOW);
    char target[PATH_MAX];
    const ssize_t size = link ? ::readlinkat(link.get(), "", target, sizeof target) : -1;
    if (size <= 0) break;
    const std::string next(target, static_cast<std::size_t>(size));
    const auto slash = next.rfind('/');
    if (slash != std::string::npos)
      directory = (next[0] == '/' ? "" : directory) + next.substr(0, slash + 1);
    name = slash == std::string::npos ? next : next.substr(slash + 1);
  }
  return name;
}

// --- library fit ---

namespace {

std::set<std::string> without(const std::set<std::string>& all,
                              const std::set<std::string>& these) {
  std::set<std::string> rest;
  std::set_difference(all.begin(), all.end(), these.begin(), these.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

/// Returns the versions that `library` needs of `name` and that are not in `defined`. The loader
/// treats a library without any versions as one with all.
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
  Misfit first;  // except for a C library that is too old, which no other library can remedy
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

/// Returns a misfit unless all libraries of UCX come from the node or all from the image, or if the
/// image's is newer.
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
    // UCX exports its internal functions as well. So a newer release has lost some, but gained
    // more.
    if (one.soname != library.soname || lost.size() <= without(library.functions, of_image).size())
      continue;
    return {Misfit::Kind::breaks,
            formatted("the node's {} is older than the image's: it lacks {} of its functions",
                      library.soname, lost.size()),
            library.soname};
  }
  return {};
}

/// Checks the image's libraries for MPI, UCX and fabrics, and their dependencies. Skips libraries
/// that are replaced as well, because they are not loaded then.
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

std::string LibraryFit::Choice::summary() const {
  const std::size_t more = left_out.size() - 1;
  return formatted("{}: {}", printable(left_out.front().second.text),
                   more == 0 ? "it is left out" : formatted("it and {} more are left out", more));
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
