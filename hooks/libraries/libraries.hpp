#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "hooks/hook.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/ld_cache.hpp"
#include "hooks/loader/loader.hpp"

namespace spc {

// --- host library ---

/// Returns {12, 1, 8} for libmpi.so.12.1.8; empty if nothing follows .so.
std::vector<unsigned> library_version(std::string_view file_name);
/// Returns the linker name, libmpi.so for libmpi.so.12. It is the same for libraries of different
/// ABIs.
std::string linker_name(std::string_view soname);
/// Returns 12.1.8.
std::string version_text(const std::vector<unsigned>& version);

enum class AbiLevel { major, full, strict };
AbiLevel abi_level_of(std::string_view word);

enum class AbiFit { fits, older, no };  ///< older: the same ABI with fewer functions
/// Returns whether a library of version `host` can replace one of version `image`. If a number that
/// only `full` and `strict` compare is missing in a file name, `full` is satisfied, `strict` is
/// not.
AbiFit abi_fit(const std::vector<unsigned>& host, const std::vector<unsigned>& image,
               AbiLevel level);

/// A library of the node, as read there: in the container, its file is not visible before it is
/// mounted.
struct HostLibrary {
  std::string source;  ///< on the host, not a link
  std::string soname;  ///< for a library without one: its file name, which the loader then uses
  std::uint16_t machine = 0;
  bool named = true;        ///< it has a soname of its own
  bool dependency = false;  ///< from mpi_dependencies
  bool fallback = false;    ///< from fallback_libraries: used only if the image has none
  bool searches = false;    ///< it has an RPATH, so its dependencies may be found elsewhere
  std::vector<std::string> needed;
  std::map<std::string, std::set<std::string>> version_needs;
  std::set<std::string> version_definitions;
  std::set<std::string> functions;  ///< exported functions with the requested prefix

  [[nodiscard]] std::string file_name() const;

  /// Reads a library and follows links. `host_root` is the prefix of the path and not in `source`.
  /// `prefix`: that of the functions to read.
  [[gnu::cold]] static Result<HostLibrary> read(const std::string& host_root,
                                                const std::string& path,
                                                std::string_view prefix = {});

  /// Returns lines for Edits::remembered.
  [[nodiscard, gnu::cold]] std::string serialize() const;
  [[gnu::cold]] static HostLibrary parse(std::string_view text);
};

/// Returns the reason why two of these libraries cannot be used together: they are different files
/// of one soname, of which a program can load only one. Empty if there is no such pair. A library
/// from fallback_libraries does not conflict: the other one is used.
[[gnu::cold]] std::string clash_of(const std::vector<HostLibrary>& libraries);

// --- image libraries ---

/// The libraries of an image as its loader finds them: in the image's LD_LIBRARY_PATH, by the
/// cache, in the standard directories. A program's own RPATH is not known. In `create` only.
class ImageLibraries {
 public:
  explicit ImageLibraries(const HookContext& context);

  /// Returns whether programs of this architecture can be loaded; true for an image whose loader
  /// has an unknown path.
  [[nodiscard]] bool has_loader(std::uint16_t machine) const;
  /// Returns the libraries with this linker name, one per soname.
  [[nodiscard]] std::vector<ImageLibrary> by_linker_name(std::string_view name,
                                                         std::uint16_t machine) const;
  /// Returns the library's ELF data; nullptr if the image has none of this soname. Valid as long as
  /// this object.
  const ElfFile* library(const std::string& soname, std::uint16_t machine);
  /// Returns the functions with this prefix that the library in this file exports.
  [[nodiscard]] std::set<std::string> functions(const std::string& path,
                                                std::string_view prefix) const;
  /// Returns the C library's release, such as 2.36, or a description; for messages.
  std::string libc(std::uint16_t machine);
  /// Returns the last name in a chain of links: libmpi.so.12.1.8 for libmpi.so.12.
  [[nodiscard]] std::string file_name(const std::string& path) const;

 private:
  [[nodiscard]] std::optional<ElfFile> read(const std::string& path, std::uint16_t machine) const;
  [[nodiscard]] std::optional<ElfFile> find(const std::string& soname, std::uint16_t machine) const;

  const HookContext& context_;
  std::vector<ImageLoader> loaders_;
  std::optional<LdCache> cache_;
  std::vector<std::string> directories_;  ///< from the image's LD_LIBRARY_PATH
  std::vector<ImageLibrary> in_directories_;
  std::map<std::pair<std::string, std::uint16_t>, std::optional<ElfFile>> read_;
};

// --- library fit ---

/// Returns whether it is a library of UCX. All releases of UCX have the same sonames and no symbol
/// versions, so only the exported functions can be compared. Libraries of two releases cannot be
/// mixed.
bool is_of_ucx(std::string_view soname);
/// Prefix of the names of UCX's functions.
inline constexpr char kFunctionsOfUcx[] = "uc";

/// The reason why a library of the node cannot be loaded in an image.
struct Misfit {
  enum class Kind { none, machine, no_glibc, old_glibc, missing, version, follows, breaks };
  Kind kind = Kind::none;
  /// the node's libfabric.so.1 needs GLIBC_2.38, but the image's C library goes up to 2.31
  std::string text;
  std::string of;  ///< missing, version, follows: the soname of the dependency

  explicit operator bool() const { return kind != Kind::none; }
};

/// Hint for a message about a library that needs a newer glibc.
inline constexpr char kNewerImage[] = " (hint: use an image of a newer distribution)";

/// Compares libraries of the node with an image, as its loader will when a program starts:
/// architecture, C library, other dependencies, and symbols by their versions. Used in `create`
/// only, once per start, so the code is optimised for size (cold).
class LibraryFit {
 public:
  /// `list`: the key in config.toml that can name missing libraries. `elsewhere`: a library with an
  /// RPATH may find dependencies that are not visible here. `spares`: leaves out libraries that
  /// break one of the image.
  LibraryFit(const HookContext& context, std::string list, bool elsewhere, bool spares = false)
      : image_(context), list_(std::move(list)), elsewhere_(elsewhere), spares_(spares) {}

  struct Choice {
    std::vector<const HostLibrary*> kept;
    /// the misfit that is a cause precedes its consequences
    std::vector<std::pair<const HostLibrary*, Misfit>> left_out;

    /// Returns the first misfit and how many libraries are left out, for a warning; `left_out` must
    /// not be empty.
    [[nodiscard, gnu::cold]] std::string summary() const;
  };
  /// Returns the libraries that can be loaded in the image. A fallback is included if the image has
  /// none and another library needs it. If a fallback does not fit, the libraries that need it do
  /// not fit either.
  [[gnu::cold]] Choice choose(const std::vector<HostLibrary>& libraries);

  /// Returns versions that the image's library of this soname defines, but this one does not:
  /// programs that need one would not start. Excludes versions by which parts of one package
  /// recognise each other, such as IBVERBS_PRIVATE_34.
  [[gnu::cold]] std::set<std::string> lost_with(const HostLibrary& library);
  [[nodiscard]] ImageLibraries& image() { return image_; }

 private:
  [[gnu::cold]] Misfit against(const HostLibrary& library,
                               const std::vector<const HostLibrary*>& beside);
  [[gnu::cold]] Misfit against_need(const HostLibrary& library, const std::string& name,
                                    const std::vector<const HostLibrary*>& beside);
  [[gnu::cold]] std::set<std::string> all_lost_with(const HostLibrary& library);
  [[gnu::cold]] Misfit against_users(const HostLibrary& library,
                                     const std::vector<const HostLibrary*>& beside);
  [[gnu::cold]] Misfit against_other_release(const HostLibrary& library,
                                             const std::vector<const HostLibrary*>& beside);
  [[gnu::cold]] void add_fallbacks(const std::vector<HostLibrary>& libraries,
                                   std::vector<const HostLibrary*>& chosen);

  ImageLibraries image_;
  std::set<std::string> left_out_;
  std::string list_;
  bool elsewhere_, spares_;
};

}  // namespace spc
