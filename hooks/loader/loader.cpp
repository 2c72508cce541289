#include "hooks/loader/loader.hpp"

#include <fcntl.h>

#include <algorithm>
#include <set>

#include "base/format.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/image_loader.hpp"
#include "hooks/loader/ld_cache.hpp"

namespace spc {
namespace {

constexpr char kCache[] = "/etc/ld.so.cache";
constexpr char kFirst[] = "/usr/lib/spank-container/first";
constexpr char kLast[] = "/usr/lib/spank-container/last";
// ldconfig reads them in the order of their names, and of equal sonames keeps the first.
constexpr char kFirstConfiguration[] = "/etc/ld.so.conf.d/00-spank-container.conf";
constexpr char kLastConfiguration[] = "/etc/ld.so.conf.d/zz-spank-container.conf";
constexpr char kAdded[] =
    "/usr/lib/spank-container/added";  ///< what a start has added, a path a line

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string beside(const std::string& path, const std::string& name) {
  return path.substr(0, path.rfind('/') + 1) + name;
}

/// A library and where its soname is found.
struct Wanted {
  std::string soname, path;
  std::uint16_t machine;
  bool before;
};

/// The paths that an earlier start of this container added to its cache or list of directories.
std::set<std::string, std::less<>> added_earlier(const HookContext& context) {
  std::set<std::string, std::less<>> paths;
  const auto text = context.image_file(kAdded);
  for (std::string_view rest = text ? std::string_view(*text) : std::string_view();
       !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    paths.emplace(line);
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

  /// ldconfig puts what is for newer processors before everything else: there shall be one of ours,
  /// too. Before ldconfig has run again, our entry is first in any case.
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

  /// Also where the cache does not say so: the loader looks into some directories after it.
  [[nodiscard]] bool image_has(const std::string& soname, std::uint16_t machine) const {
    if (const auto flags = cache_flags_of(machine); flags && cache_.find(soname, *flags) != nullptr)
      return true;
    const auto& directories = default_library_directories(machine);
    return std::any_of(directories.begin(), directories.end(), [&](const std::string& directory) {
      return machine_in_image(context_, directory + "/" + soname) == machine;
    });
  }

  void add_to_cache(Wanted library) {
    const auto flags = cache_flags_of(library.machine);
    if (!flags) return;
    // An entry of the image that is the same is moved, and stays with the container.
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

  /// Directories that end in a line or a colon. An empty or missing file is not the same: without
  /// it musl has a list of its own.
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

  /// `directories` with those of ours before and behind them.
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

  /// For a loader of which nothing is known. There is no way to be after what it knows.
  void set_variable() {
    const std::string list = list_with_ours("");
    if (!list.empty()) edits_.environment.prepend["LD_LIBRARY_PATH"] = list;
  }

  /// For the next start of this container.
  void remember() {
    std::sort(added_.begin(), added_.end());
    added_.erase(std::unique(added_.begin(), added_.end()), added_.end());
    std::string lines;
    for (const std::string& path : added_) lines.append(path) += '\n';
    edits_.files.push_back({kAdded, std::move(lines)});
  }

  /// What ldconfig inside will find again.
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
