#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/hook.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/image_loader.hpp"
#include "hooks/loader/ld_cache.hpp"

namespace spc {

/// The libraries of an image as its loader finds them: in the image's LD_LIBRARY_PATH, by the
/// cache, in the standard directories. A program's own RPATH is not known. In `create` only.
class ImageLibraries {
 public:
  explicit ImageLibraries(const HookContext& context);

  /// Whether programs of this architecture can be loaded; true for an image whose loader is in an
  /// unknown place.
  [[nodiscard]] bool has_loader(std::uint16_t machine) const;
  /// Those with this linker name, one per soname.
  [[nodiscard]] std::vector<ImageLibrary> by_linker_name(std::string_view name,
                                                         std::uint16_t machine) const;
  /// The library's ELF data; null if the image has none of this soname. Valid as long as this
  /// object.
  const ElfFile* library(const std::string& soname, std::uint16_t machine);
  /// The functions with this prefix that the library in this file exports.
  [[nodiscard]] std::set<std::string> functions(const std::string& path,
                                                std::string_view prefix) const;
  /// 2.36, or a description; for messages.
  std::string libc(std::uint16_t machine);
  /// The last name in a chain of links: libmpi.so.12 -> libmpi.so.12.1.8.
  [[nodiscard]] std::string file_name(const std::string& path) const;

 private:
  [[nodiscard]] std::optional<ElfFile> read(const std::string& path, std::uint16_t machine) const;
  [[nodiscard]] std::optional<ElfFile> find(const std::string& soname, std::uint16_t machine) const;

  const HookContext& context_;
  std::vector<ImageLoader> loaders_;
  std::optional<LdCache> cache_;
  std::vector<std::string> directories_;  ///< of the image's LD_LIBRARY_PATH
  std::vector<ImageLibrary> in_directories_;
  std::map<std::pair<std::string, std::uint16_t>, std::optional<ElfFile>> read_;
};

}  // namespace spc
