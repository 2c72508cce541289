#include "hooks/nvidia_driver/cuda_compat.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "base/directory.hpp"
#include "base/format.hpp"
#include "base/json/json.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

/// NVIDIA's NGC images keep it in the second; their entrypoint links compat/lib to it and puts that
/// into LD_LIBRARY_PATH.
constexpr std::array<const char*, 2> kCompatDirectories{"/usr/local/cuda/compat",
                                                        "/usr/local/cuda/compat/lib.real"};
constexpr char kSection[] = ".note.cuda.fwd_compatibility";
constexpr std::size_t kMostCompatNames = 4096;
constexpr std::uint64_t kMostNote = 64 << 10;

/// Those of a directory of the image that are called libcuda.so.X.Y; of a larger directory than any
/// real one: none.
std::vector<std::string> libcudas(const HookContext& context, const char* directory) {
  std::vector<std::string> names;
  std::size_t seen = 0;
  for (DirectoryReader entries(context.open_in_image(directory, O_RDONLY | O_DIRECTORY));
       entries.next();) {
    if (++seen > kMostCompatNames) return {};
    const auto name = entries.name();
    if (name.starts_with("libcuda.so.") && name.find('.', 11) != std::string_view::npos)
      names.emplace_back(name);
  }
  return names;
}

bool read_at(int fd, void* to, std::size_t size, std::uint64_t offset) {
  return offset <= INT64_MAX &&
         ::pread(fd, to, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

/// NVIDIA's note in a 64-bit library. All sizes are the file's word and limited.
struct CompatNote {
  bool there = false;
  std::string text;  ///< empty if it cannot be read
};

/// Of a section with one note: its owner is padded as the section is aligned
/// (cmd/nvidia-cdi-hook/cudacompat).
std::string text_of_note(int fd, const Elf64_Shdr& section) {
  constexpr std::string_view kOwner("NVIDIA Corporation\0", 19);
  const std::uint64_t align = std::max<std::uint64_t>(section.sh_addralign, 1);
  if (section.sh_type != SHT_NOTE || section.sh_size > kMostNote ||
      section.sh_size < sizeof(Elf64_Nhdr) || align > 8)
    return {};
  std::string bytes(section.sh_size, '\0');
  if (!read_at(fd, bytes.data(), bytes.size(), section.sh_offset)) return {};
  Elf64_Nhdr note{};
  std::copy_n(bytes.data(), sizeof note, reinterpret_cast<char*>(&note));
  if (note.n_namesz != kOwner.size() || bytes.compare(sizeof note, kOwner.size(), kOwner) != 0)
    return {};
  const std::uint64_t begin = sizeof note + (kOwner.size() + align - 1) / align * align;
  if (begin + note.n_descsz > bytes.size()) return {};
  return bytes.substr(begin, note.n_descsz);
}

CompatNote note_of(int fd) {
  Elf64_Ehdr header{};
  if (!read_at(fd, &header, sizeof header, 0) ||
      !std::equal(header.e_ident, header.e_ident + SELFMAG, ELFMAG) ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
      header.e_shnum > 512 || header.e_shstrndx >= header.e_shnum)
    return {};
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (!read_at(fd, sections.data(), sections.size() * sizeof(Elf64_Shdr), header.e_shoff))
    return {};
  const Elf64_Shdr& texts = sections[header.e_shstrndx];
  if (texts.sh_size > kMostNote) return {};
  std::string names(texts.sh_size, '\0');
  if (!read_at(fd, names.data(), names.size(), texts.sh_offset)) return {};
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_name < names.size() &&
        std::string_view(names.c_str() + section.sh_name) == kSection)
      return {.there = true, .text = text_of_note(fd, section)};
  }
  return {};
}

std::optional<std::uint32_t> cuda_major_of(std::string_view version) {
  return decimal(version.substr(0, version.find('.')));
}

/// Whether the note names this major version of a driver; nothing if it cannot be read.
std::optional<bool> is_for_driver(const std::string& note, std::optional<std::uint32_t> major) {
  const auto json = Json::parse(note.c_str());
  const Json* drivers = json ? json->find("Driver") : nullptr;
  if (drivers == nullptr || !drivers->is_array()) return std::nullopt;
  return std::ranges::any_of(drivers->elements(), [&](const Json& entry) {
    if (entry.is_number()) return major == entry.as_number();
    return entry.is_text() && decimal(entry.as_text()) == major;
  });
}

}  // namespace

std::string why_no_cuda_compat(const HookContext& context,
                               const std::vector<NvidiaGpu>& accessible) {
  if (!context.flag("cuda_compat", true)) return "cuda_compat is off in config.toml";
  for (const NvidiaGpu& gpu : accessible) {
    if (gpu.model.find("GeForce") != std::string::npos)
      return formatted("{} does not support it", gpu.model);
  }
  return {};
}

CudaCompat cuda_compat_of_image(const HookContext& context, std::string_view driver_version,
                                std::string_view why_not) {
  CudaCompat compat;
  if (!context.open_in_image) return compat;
  std::string directory;
  std::vector<std::string> names;
  for (const char* place : kCompatDirectories) {
    directory = place;
    names = libcudas(context, place);
    if (!names.empty()) break;
  }
  if (names.empty()) return compat;
  if (names.size() > 1) {
    compat.reason = directory + " in the image has several libcuda.so: not used";
    return compat;
  }
  const std::string version = names.front().substr(sizeof "libcuda.so." - 1);
  const std::string path = directory + "/" + names.front();
  const UniqueFd file = context.open_in_image(path.c_str(), O_RDONLY);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    compat.reason = path + " in the image is not a file: not used";
    return compat;
  }
  compat.version = version;
  const CompatNote note = note_of(file.get());
  const auto driver_major = cuda_major_of(driver_version);
  const auto named = is_for_driver(note.text, driver_major);
  if (note.there && !named) {
    compat.reason = path + " in the image does not say which drivers it is for: not used";
    return compat;
  }
  const bool use = named ? *named && compare_versions(version, driver_version) > 0
                         : cuda_major_of(version) > driver_major;
  if (use && !why_not.empty()) {
    compat.reason = formatted("libcuda {} of the image is not used: {}", version, why_not);
    return compat;
  }
  if (use) compat.directory = directory;
  compat.reason = formatted("libcuda {} of the image {} the driver's {}", version,
                            use ? "is used instead of" : "does not replace", driver_version);
  return compat;
}

}  // namespace spc
