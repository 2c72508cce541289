#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// How the programs of an image find libraries of one machine.
struct ImageLoader {
  std::uint16_t machine = 0;
  bool glibc = false;     ///< by /etc/ld.so.cache
  bool musl = false;      ///< by the directories in musl_path
  std::string musl_path;  ///< /etc/ld-musl-x86_64.path
};

/// The loaders that the image has in the places that programs name. Empty for one without a C library, or with one elsewhere.
std::vector<ImageLoader> loaders_of_image(const HookContext& context);

/// The machine of an ELF file of the image; 0 if it is none or missing.
std::uint16_t machine_in_image(const HookContext& context, const std::string& path);

/// What glibc's loader searches besides the cache.
const std::vector<std::string>& default_library_directories(std::uint16_t machine);

struct ImageLibrary {
  std::string soname;
  std::string path;
  std::uint16_t machine = 0;
};

/// The libraries in a directory of the image, as ldconfig would list them; links are followed inside. At most the first 4096
/// names are looked at, and of them those that begin with `prefix`.
std::vector<ImageLibrary> libraries_in(const HookContext& context, const std::string& directory, std::string_view prefix = {});

}  // namespace spc
