#include "hooks/loader/loader.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/ld_cache.hpp"

namespace spc {

// --- image loader ---

namespace {

/// Paths at which programs look for their loader: psABIs for glibc, ldso/dynlink.c and the
/// compiler's specs for musl.
struct KnownLoader {
  std::uint16_t machine;
  const char* glibc;
  const char* musl;
  const char* musl_path;
};
constexpr std::array<KnownLoader, 5> kKnownLoaders{{
    {EM_X86_64, "/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1",
     "/etc/ld-musl-x86_64.path"},
    {EM_AARCH64, "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1",
     "/etc/ld-musl-aarch64.path"},
    {EM_386, "/lib/ld-linux.so.2", "/lib/ld-musl-i386.so.1", "/etc/ld-musl-i386.path"},
    {EM_ARM, "/lib/ld-linux-armhf.so.3", "/lib/ld-musl-armhf.so.1", "/etc/ld-musl-armhf.path"},
    {EM_PPC64, "/lib64/ld64.so.2", "/lib/ld-musl-powerpc64le.so.1",
     "/etc/ld-musl-powerpc64le.path"},
}};

constexpr std::size_t kMostDirectoryNames = 4096;

std::set<std::string> names_in(const HookContext& context, const std::string& directory,
                               std::string_view prefix) {
  std::set<std::string> names;
  DirectoryReader entries(context.open_in_image(directory.c_str(), O_RDONLY | O_DIRECTORY));
  for (std::size_t i = 0; i < kMostDirectoryNames && entries.next(); ++i) {
    const auto name = entries.name();
    if (name.starts_with(prefix) && name.find(".so") != std::string_view::npos) names.emplace(name);
  }
  return names;
}

}  // namespace

std::uint16_t machine_in_image(const HookContext& context, const std::string& path) {
  const UniqueFd file = context.open_regular(path.c_str());
  return file ? elf_machine_of(file.get()).value_or(0) : 0;
}

std::vector<ImageLoader> loaders_of_image(const HookContext& context) {
  std::vector<ImageLoader> loaders;
  for (const KnownLoader& known : kKnownLoaders) {
    ImageLoader loader{known.machine};
    loader.glibc = machine_in_image(context, known.glibc) == known.machine;
    loader.musl = machine_in_image(context, known.musl) == known.machine;
    loader.musl_path = known.musl_path;
    if (loader.glibc || loader.musl) loaders.push_back(loader);
  }
  return loaders;
}

const std::vector<std::string>& default_library_directories(std::uint16_t machine) {
  static const std::map<std::uint16_t, std::vector<std::string>> directories{
      {EM_X86_64,
       {"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib",
        "/usr/lib"}},
      {EM_AARCH64,
       {"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib",
        "/usr/lib"}},
      {EM_386, {"/lib/i386-linux-gnu", "/usr/lib/i386-linux-gnu", "/lib", "/usr/lib"}}};
  static const std::vector<std::string> otherwise{"/lib", "/usr/lib"};
  const auto found = directories.find(machine);
  return found == directories.end() ? otherwise : found->second;
}

std::vector<ImageLibrary> libraries_in(const HookContext& context, const std::string& directory,
                                       std::string_view prefix) {
  std::map<std::pair<std::uint16_t, std::string>, std::string> found;
  for (const std::string& name : names_in(context, directory, prefix)) {
    const UniqueFd file = context.open_regular((directory + "/" + name).c_str());
    if (!file) continue;
    const auto elf = read_elf(file.get());
    if (!elf || elf->type != ET_DYN) continue;
    std::string& path = found[{elf->machine, elf->soname.empty() ? name : elf->soname}];
    // Use the file whose name is the soname, as the loader does, otherwise the newest.
    if (path.empty() || name == elf->soname ||
        (path != elf->soname && compare_versions(name, path) > 0))
      path = name;
  }
  std::vector<ImageLibrary> libraries;
  for (const auto& [key, name] : found)
    libraries.push_back({key.second, directory + "/" + name, key.first});
  return libraries;
}

// --- loader ---

namespace {

constexpr char kCache[] = "/etc/ld.so.cache";
constexpr char kFirst[] = "/usr/lib/spank-container/first";
constexpr char kLast[] = "/usr/lib/spank-container/last";
// ldconfig reads these files in the order of their names, and keeps the first of equal sonames.
constexpr char kFirstConfiguration[] = "/etc/ld.so.conf.d/00-spank-container.conf";
constexpr char kLastConfiguration[] = "/etc/ld.so.conf.d/zz-spank-container.conf";
/// additions of a start, one path per line
constexpr char kAdded[] = "/usr/lib/spank-container/added";

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string beside(const std::string& path, const std::string& name) {
  return path.substr(0, path.rfind('/') + 1) + name;
}

/// A library, and the path at which its soname is found.
struct CachedLibrary {
  std::string soname, path;
  std::uint16_t machine;
  bool before;
};

/// Returns the paths that an earlier start of this container added to its cache or list of
/// directories.
std::set<std::string, std::less<>> added_earlier(const HookContext& context) {
  std::set<std::string, std::less<>> paths;
  const auto text = context.image_file(kAdded);
  for (std::string_view rest = text ? std::string_view(*text) : std::string_view();
       !rest.empty();) {
    paths.emplace(next_part(rest, '\n'));
  }
  return paths;
}

class Plan {
 public:
  Plan(const HookContext& context, const std::vector<LibraryDirectoryEdit>& directories)
      : context_(context),
        loaders_(loaders_of_image(context)),
        directories_(directories),
        earlier_(added_earlier(context)) {}

  Result<Edits> make(const std::vector<LibraryEdit>& libraries) {
    read_cache();
    for (const LibraryDirectoryEdit& directory : directories_) add_directory(directory);
    for (const LibraryEdit& library : libraries) add_library(library);
    if (has(&ImageLoader::glibc)) {
      write_cache();
      write_configuration();
    }
    for (const ImageLoader& loader : loaders_) {
      if (loader.musl) write_musl_path(loader);
    }
    if (loaders_.empty()) set_variable();
    if (!loaders_.empty()) remember();
    if (foreign_ > 0) {
      edits_.notes.push_back(
          std::to_string(foreign_) +
          " libraries are skipped: the image's loader is for another architecture");
    }
    return std::move(edits_);
  }

 private:
  [[nodiscard]] bool has(bool ImageLoader::*kind) const {
    return std::any_of(loaders_.begin(), loaders_.end(),
                       [&](const ImageLoader& loader) { return loader.*kind; });
  }
  [[nodiscard]] const ImageLoader* loader_for(std::uint16_t machine) const {
    const auto found = std::find_if(loaders_.begin(), loaders_.end(),
                                    [&](const auto& loader) { return loader.machine == machine; });
    return found == loaders_.end() ? nullptr : &*found;
  }

  [[nodiscard]] bool is_of_earlier_start(std::string_view path) const {
    return path.starts_with(kNodeLibraries) || earlier_.contains(path);
  }

  void read_cache() {
    if (!has(&ImageLoader::glibc)) return;
    const UniqueFd file = context_.open_in_image(kCache, O_RDONLY);
    if (!file) {
      edits_.notes.push_back(formatted("the image has no {}: one is created", kCache));
      return;
    }
    auto read = LdCache::read(file.get());
    if (!read) {
      edits_.notes.push_back(
          formatted("the image's {} is ignored: {}", kCache, read.error().message()));
      return;
    }
    cache_ = *std::move(read);
    cache_.remove_if([&](const LdCache::Entry& entry) { return is_of_earlier_start(entry.path); });
  }

  void add_directory(const LibraryDirectoryEdit& directory) {
    for (const ImageLibrary& library : libraries_in(context_, directory.path)) {
      if (loader_for(library.machine) != nullptr)
        add_to_cache({library.soname, library.path, library.machine, directory.before});
    }
  }

  void add_library(const LibraryEdit& edit) {
    const std::uint16_t machine = edit.machine == 0 ? own_machine() : edit.machine;
    if (!loaders_.empty() && loader_for(machine) == nullptr) {
      ++foreign_;
      return;
    }
    if (!edit.before && image_has(edit.soname, machine)) return;
    const std::string link = beside(edit.path, edit.soname);
    if (link != edit.path) edits_.symlinks.push_back({link, name_of(edit.path)});
    const std::string in_ours = std::string(edit.before ? kFirst : kLast) + "/" + edit.soname;
    if (in_ours != edit.path) edits_.symlinks.push_back({in_ours, edit.path});
    if (edit.before) outdo_variants(edit, machine);
    (edit.before ? has_first_ : has_last_) = true;
    add_to_cache({edit.soname, link, machine, edit.before});
  }

  /// Adds a variant for each of the image's variants for newer processors, because ldconfig puts
  /// those before all other entries. Until ldconfig runs again, this library's entry is first in
  /// any case.
  void outdo_variants(const LibraryEdit& edit, std::uint16_t machine) {
    for (const LdCache::Entry& entry : cache_.of_soname(edit.soname)) {
      const std::string name(cache_.hwcap_of(entry));
      if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos ||
          entry.flags != cache_flags_of(machine))
        continue;
      edits_.symlinks.push_back(
          {std::string(kFirst) + "/glibc-hwcaps/" + name + "/" + edit.soname, edit.path});
    }
  }

  /// Returns whether the image has the library, in the cache or in the directories that the loader
  /// searches after it.
  [[nodiscard]] bool image_has(const std::string& soname, std::uint16_t machine) const {
    if (const auto flags = cache_flags_of(machine); flags && cache_.find(soname, *flags) != nullptr)
      return true;
    const auto& directories = default_library_directories(machine);
    return std::any_of(directories.begin(), directories.end(), [&](const std::string& directory) {
      return machine_in_image(context_, directory + "/" + soname) == machine;
    });
  }

  void add_to_cache(CachedLibrary library) {
    const auto flags = cache_flags_of(library.machine);
    if (!flags) return;
    // If the image has an identical entry, it is moved, and not removed at the next start.
    const auto of_image = cache_.of_soname(library.soname);
    const auto is_it = [&](const LdCache::Entry& entry) {
      return entry.path == library.path && entry.soname == library.soname && entry.flags == *flags;
    };
    if (std::none_of(of_image.begin(), of_image.end(), is_it)) {
      added_.push_back(library.path);
    } else {
      cache_.remove_if(is_it);
    }
    if (library.before) {
      cache_.add_first(std::move(library.soname), std::move(library.path), *flags);
    } else {
      cache_.add_last(std::move(library.soname), std::move(library.path), *flags);
    }
  }

  void write_cache() {
    if (context_.open_in_image(kCache, O_RDONLY | O_DIRECTORY)) {
      set_variable();
      return;
    }
    edits_.files.push_back({kCache, cache_.serialize()});
  }

  /// Writes the directories, each ended by a line end or a colon. Writes a file even if the list is
  /// empty: without the file, musl uses a list of its own.
  void write_musl_path(const ImageLoader& loader) {
    std::string image = "/lib:/usr/local/lib:/usr/lib";
    if (auto text = context_.image_file(loader.musl_path.c_str(), 64 << 10)) {
      image.clear();
      for (std::string_view rest = *text; !rest.empty();) {
        const std::string_view directory = rest.substr(0, rest.find_first_of(":\n"));
        rest.remove_prefix(std::min(directory.size() + 1, rest.size()));
        if (directory.empty() || is_of_earlier_start(directory)) continue;
        image.append(image.empty() ? "" : ":").append(directory);
      }
    }
    for (const auto& directory : directories_) {
      if ((":" + image + ":").find(":" + directory.path + ":") == std::string::npos)
        added_.push_back(directory.path);
    }
    edits_.files.push_back({loader.musl_path, list_with_ours(image) + "\n"});
  }

  /// Returns `directories` with the hooks' directories before and after them.
  [[nodiscard]] std::string list_with_ours(const std::string& directories) const {
    std::string list;
    const auto add = [&](const std::string& directory) {
      list.append(list.empty() ? "" : ":").append(directory);
    };
    for (const auto& directory : directories_) {
      if (directory.before) add(directory.path);
    }
    if (has_first_) add(kFirst);
    if (!directories.empty()) add(directories);
    for (const auto& directory : directories_) {
      if (!directory.before) add(directory.path);
    }
    if (has_last_) add(kLast);
    return list;
  }

  /// Sets LD_LIBRARY_PATH for an unknown loader. That variable cannot name directories that are
  /// searched after the loader's own.
  void set_variable() {
    const std::string list = list_with_ours("");
    if (!list.empty()) edits_.environment.prepend["LD_LIBRARY_PATH"] = list;
  }

  /// Records the additions for the next start of this container.
  void remember() {
    std::sort(added_.begin(), added_.end());
    added_.erase(std::unique(added_.begin(), added_.end()), added_.end());
    std::string lines;
    for (const std::string& path : added_) lines.append(path) += '\n';
    edits_.files.push_back({kAdded, std::move(lines)});
  }

  /// Writes the files by which ldconfig inside finds the same libraries.
  void write_configuration() {
    std::string first = "# Libraries of the node, updated at each start of the container.\n";
    std::string last = first;
    for (const auto& directory : directories_)
      (directory.before ? first : last).append(directory.path) += '\n';
    if (has_first_) first.append(kFirst) += '\n';
    if (has_last_) last.append(kLast) += '\n';
    edits_.files.push_back({kFirstConfiguration, std::move(first)});
    const bool says_something = has_last_ || std::any_of(directories_.begin(), directories_.end(),
                                                         [](const auto& d) { return !d.before; });
    if (says_something || context_.open_in_image(kLastConfiguration, O_PATH)) {
      edits_.files.push_back({kLastConfiguration, std::move(last)});
    }
  }

  const HookContext& context_;
  std::vector<ImageLoader> loaders_;
  const std::vector<LibraryDirectoryEdit>& directories_;
  LdCache cache_;
  Edits edits_;
  std::set<std::string, std::less<>> earlier_;
  std::vector<std::string> added_;
  bool has_first_ = false, has_last_ = false;
  std::size_t foreign_ = 0;
};

}  // namespace

Result<Edits> loader_edits(const HookContext& context, const std::vector<LibraryEdit>& libraries,
                           const std::vector<LibraryDirectoryEdit>& directories) {
  if (!context.open_in_image) return Edits();
  if (libraries.empty() && directories.empty() && !context.open_in_image(kAdded, O_PATH))
    return Edits();
  return Plan(context, directories).make(libraries);
}

}  // namespace spc
