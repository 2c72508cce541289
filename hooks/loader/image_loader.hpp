#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// How the programs of an image find libraries of one architecture.
struct ImageLoader {
  std::uint16_t machine = 0;
  bool glibc = false;     ///< by /etc/ld.so.cache
  bool musl = false;      ///< by the directories in musl_path
  std::string musl_path;  ///< /etc/ld-musl-x86_64.path
};

/// The loaders in the image at the standard paths. Empty without a C library, or with one
/// elsewhere.
std::vector<ImageLoader> loaders_of_image(const HookContext& context);

/// The architecture of an ELF file of the image; 0 if it is not one or missing.
std::uint16_t machine_in_image(const HookContext& context, const std::string& path);

/// Directories searched by glibc's loader besides the cache.
const std::vector<std::string>& default_library_directories(std::uint16_t machine);

struct ImageLibrary {
  std::string soname;
  std::string path;
  std::uint16_t machine = 0;
};

/// The libraries in a directory of the image, as listed by ldconfig; links are followed in the
/// container. At most the first 4096 names are read, and of them those that start with `prefix`.
std::vector<ImageLibrary> libraries_in(const HookContext& context, const std::string& directory,
                                       std::string_view prefix = {});

}  // namespace spc
