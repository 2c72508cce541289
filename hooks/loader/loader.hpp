#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

// --- image loader ---

/// The method by which programs of an image find libraries of one architecture.
struct ImageLoader {
  std::uint16_t machine = 0;
  bool glibc = false;     ///< by /etc/ld.so.cache
  bool musl = false;      ///< by the directories in musl_path
  std::string musl_path;  ///< /etc/ld-musl-x86_64.path
};

/// Returns the loaders in the image at the standard paths. Empty without a C library, or with one
/// elsewhere.
std::vector<ImageLoader> loaders_of_image(const HookContext& context);

/// Returns the architecture of an ELF file of the image; 0 if it is missing or not one.
std::uint16_t machine_in_image(const HookContext& context, const std::string& path);

/// Returns the directories searched by glibc's loader besides the cache.
const std::vector<std::string>& default_library_directories(std::uint16_t machine);

struct ImageLibrary {
  std::string soname;
  std::string path;
  std::uint16_t machine = 0;
};

/// Returns the libraries in a directory of the image, as listed by ldconfig; links are followed in
/// the container. Reads at most the first 4096 names, and of them those that start with `prefix`.
std::vector<ImageLibrary> libraries_in(const HookContext& context, const std::string& directory,
                                       std::string_view prefix = {});

// --- loader ---

/// Directory in the container. Files below it are made by a start of the container, and the hooks
/// manage all cache entries that point there.
constexpr char kNodeLibraries[] = "/usr/lib/spank-container/";

/// Returns the edits with which the image's loader finds libraries of the host. Call it in
/// `create`. It executes nothing in the image and only reads its files.
///
/// - glibc: /etc/ld.so.cache with the image's entries and these, a file in the writable layer that
///   ldconfig can replace. Loader variables and paths in programs (LD_LIBRARY_PATH, RPATH) take
///   precedence, as usual.
/// - musl: the same with directories, listed in /etc/ld-musl-MACHINE.path.
/// - a loader at another path, or none: LD_LIBRARY_PATH.
///
/// The links to these libraries are in a directory of their own, so that the loader does not search
/// the image's directories for other libraries. A later ldconfig in the container also finds that
/// directory (/etc/ld.so.conf.d/*spank-container.conf). Of equal sonames, `directories` precede
/// `libraries`, and earlier elements later ones.
///
/// Call it for every container, even without libraries: a container that is started again must lose
/// the libraries of its last start.
Result<Edits> loader_edits(const HookContext& context, const std::vector<LibraryEdit>& libraries,
                           const std::vector<LibraryDirectoryEdit>& directories);

}  // namespace spc
