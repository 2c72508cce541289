#include "hooks/loader/elf.hpp"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>

namespace spc {
namespace {

constexpr std::size_t kMostBytes = 1 << 20;  ///< of any part that is read at once
/// Limit in bytes of a table of versions. libstdc++'s has four thousand.
constexpr std::size_t kMostVersions = 64 << 10;
constexpr std::size_t kMostProgramHeaders = 256;  ///< real files have about ten
constexpr std::size_t kMostNames = 4096;          ///< of NEEDED entries, versions and notes

Error damaged(const char* what) {
  return {ErrorKind::invalid, std::string("read an ELF file: ") + what};
}

/// Returns a part of the file; empty if the file does not have it or its size is implausible.
std::optional<std::string> part_of(int fd, std::uint64_t offset, std::uint64_t size) {
  if (size > kMostBytes ||
      offset > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - size)
    return std::nullopt;
  std::string bytes(size, '\0');
  for (std::size_t done = 0; done < size;) {
    const ssize_t got =
        ::pread(fd, bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

template <typename T>
std::optional<T> value_at(std::string_view bytes, std::size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Returns the text at this offset; empty if it is not terminated.
std::string text_at(std::string_view table, std::uint64_t offset) {
  if (offset >= table.size()) return {};
  const auto end = table.find('\0', offset);
  return end == std::string_view::npos ? std::string()
                                       : std::string(table.substr(offset, end - offset));
}

struct Elf32 {
  using Header = Elf32_Ehdr;
  using Segment = Elf32_Phdr;
  using Dynamic = Elf32_Dyn;
};
struct Elf64 {
  using Header = Elf64_Ehdr;
  using Segment = Elf64_Phdr;
  using Dynamic = Elf64_Dyn;
};

/// Reads a file of one class. The structures of versions and notes are the same in both.
template <typename Class>
class ElfReader {
 public:
  enum class Depth { all, name };  ///< name: machine, type and soname only, a tenth of the work
  explicit ElfReader(int fd, Depth depth = Depth::all) : fd_(fd), depth_(depth) {}

  /// Returns, after read(), the functions with this prefix among the symbols that it defines.
  [[nodiscard]] std::set<std::string> functions(std::string_view prefix) const {
    std::set<std::string> found;
    const std::string names =
        bytes_at(tables_.strings, std::min<std::uint64_t>(tables_.strings_size, kMostBytes));
    const std::string symbols = bytes_at(
        tables_.symbols, std::min<std::uint64_t>(count_of_symbols() * sizeof(Symbol), kMostBytes));
    for (std::size_t at = 0; const auto symbol = value_at<Symbol>(symbols, at);
         at += sizeof(Symbol)) {
      if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_BIND(symbol->st_info) == STB_LOCAL ||
          ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
        continue;
      std::string name = text_at(names, symbol->st_name);
      if (name.starts_with(prefix)) found.insert(std::move(name));
    }
    return found;
  }

  Result<ElfFile> read() {
    const auto bytes = part_of(fd_, 0, sizeof(typename Class::Header));
    if (!bytes) return damaged("truncated header");
    const auto header = *value_at<typename Class::Header>(*bytes, 0);
    file_.machine = header.e_machine;
    file_.type = header.e_type;
    file_.is_64 = sizeof(header) == sizeof(Elf64_Ehdr);
    SPC_TRY(read_segments(header));
    for (const auto& segment : segments_) {
      if (depth_ == Depth::name) break;
      if (segment.p_type == PT_INTERP)
        file_.interpreter =
            text_at(part_of(fd_, segment.p_offset, segment.p_filesz).value_or(""), 0);
      if (segment.p_type == PT_NOTE)
        read_notes(part_of(fd_, segment.p_offset, segment.p_filesz).value_or(""));
    }
    for (const auto& segment : segments_) {
      if (segment.p_type == PT_DYNAMIC) SPC_TRY(read_dynamic(segment));
    }
    return std::move(file_);
  }

 private:
  using Segment = typename Class::Segment;
  using Symbol = Elf64_Sym;  ///< see exported_functions()

  /// Returns the number of symbols. The symbol table does not contain its length, but either hash
  /// table does.
  [[nodiscard]] std::uint64_t count_of_symbols() const {
    if (tables_.hash != 0) return value_at<std::uint32_t>(bytes_at(tables_.hash, 8), 4).value_or(0);
    const std::string header = bytes_at(tables_.gnu_hash, 16);
    const std::uint64_t buckets = value_at<std::uint32_t>(header, 0).value_or(0);
    const std::uint64_t first = value_at<std::uint32_t>(header, 4).value_or(0);
    const std::uint64_t bloom = value_at<std::uint32_t>(header, 8).value_or(0);
    const std::uint64_t chains_at =
        tables_.gnu_hash + 16 + bloom * sizeof(std::uint64_t) + buckets * 4;
    const std::string table =
        bytes_at(chains_at - buckets * 4, std::min<std::uint64_t>(buckets * 4, kMostBytes));
    std::uint64_t last = 0;
    for (std::size_t at = 0; const auto begins = value_at<std::uint32_t>(table, at); at += 4)
      last = std::max<std::uint64_t>(last, *begins);
    if (last < first || last == 0) return 0;
    const std::string chains = bytes_at(chains_at, kMostBytes);
    while (const auto hash = value_at<std::uint32_t>(chains, (last - first) * 4)) {
      ++last;
      if ((*hash & 1) != 0) break;
    }
    return last;
  }

  Result<void> read_segments(const typename Class::Header& header) {
    if (header.e_phnum == 0) return {};
    if (header.e_phentsize != sizeof(Segment) || header.e_phnum > kMostProgramHeaders)
      return damaged("invalid program headers");
    const auto table = part_of(fd_, header.e_phoff, header.e_phnum * sizeof(Segment));
    if (!table) return damaged("truncated program headers");
    for (std::size_t i = 0; i < header.e_phnum; ++i)
      segments_.push_back(*value_at<Segment>(*table, i * sizeof(Segment)));
    return {};
  }

  /// Returns the file offset of this address, and the number of bytes available from there.
  [[nodiscard]] std::optional<std::pair<std::uint64_t, std::uint64_t>> place_of(
      std::uint64_t address) const {
    for (const auto& segment : segments_) {
      if (segment.p_type != PT_LOAD || address < segment.p_vaddr) continue;
      const std::uint64_t inside = address - segment.p_vaddr;
      if (inside < segment.p_filesz)
        return std::pair<std::uint64_t, std::uint64_t>(segment.p_offset + inside,
                                                       segment.p_filesz - inside);
    }
    return std::nullopt;
  }

  /// Returns at most `most` bytes from this address on: tables of versions do not contain their
  /// length.
  [[nodiscard]] std::string bytes_at(std::uint64_t address, std::uint64_t most) const {
    const auto place = place_of(address);
    return place ? part_of(fd_, place->first, std::min(most, place->second)).value_or("") : "";
  }

  Result<void> read_dynamic(const Segment& segment) {
    const auto table = part_of(fd_, segment.p_offset, segment.p_filesz);
    if (!table) return damaged("truncated dynamic section");
    std::uint64_t strings = 0, strings_size = 0, soname = 0, rpath = 0, runpath = 0;
    std::uint64_t needs = 0, needs_count = 0, definitions = 0, definitions_count = 0;
    std::vector<std::uint64_t> needed;
    for (std::size_t at = 0;; at += sizeof(typename Class::Dynamic)) {
      const auto entry = value_at<typename Class::Dynamic>(*table, at);
      if (!entry || entry->d_tag == DT_NULL) break;
      const std::uint64_t value = entry->d_un.d_val;
      switch (entry->d_tag) {
        case DT_STRTAB: strings = value; break;
        case DT_STRSZ: strings_size = value; break;
        case DT_SONAME: soname = value; break;
        case DT_SYMTAB: tables_.symbols = value; break;
        case DT_HASH: tables_.hash = value; break;
        case DT_GNU_HASH: tables_.gnu_hash = value; break;
        case DT_RPATH: rpath = value; break;
        case DT_RUNPATH: runpath = value; break;
        case DT_NEEDED:
          if (needed.size() < kMostNames) needed.push_back(value);
          break;
        case DT_VERNEED: needs = value; break;
        case DT_VERNEEDNUM: needs_count = value; break;
        case DT_VERDEF: definitions = value; break;
        case DT_VERDEFNUM: definitions_count = value; break;
        default: break;
      }
    }

    tables_.strings = strings;
    tables_.strings_size = strings_size;
    // Programs with much C++ have string tables of many mebibytes, so read only the requested
    // strings.
    // Now the table of strings is known: read the names.
    const auto text = [&](std::uint64_t offset) {
      return offset == 0 || offset >= strings_size
                 ? std::string()
                 : text_at(bytes_at(strings + offset,
                                    std::min<std::uint64_t>(strings_size - offset, 4096)),
                           0);
    };
    file_.soname = text(soname);
    if (depth_ == Depth::name) return {};
    file_.rpath = text(rpath);
    file_.runpath = text(runpath);
    for (const std::uint64_t offset : needed) file_.needed.push_back(text(offset));
    if (needs != 0) read_needs(bytes_at(needs, kMostVersions), needs_count, text);
    if (definitions != 0)
      read_definitions(bytes_at(definitions, kMostVersions), definitions_count, text);
    return {};
  }

  template <typename Text>
  void read_needs(std::string_view table, std::uint64_t count, const Text& text) {
    std::size_t names = 0;
    for (std::size_t at = 0; count > 0; --count) {
      const auto need = value_at<Elf64_Verneed>(table, at);
      if (!need) return;
      auto& versions = file_.version_needs[text(need->vn_file)];
      std::size_t version_at = at + need->vn_aux;
      for (unsigned i = 0; i < need->vn_cnt && ++names <= kMostNames; ++i) {
        const auto version = value_at<Elf64_Vernaux>(table, version_at);
        if (!version) return;
        // A weak version may be missing: the loader does not report it.
        if ((version->vna_flags & VER_FLG_WEAK) == 0) versions.insert(text(version->vna_name));
        if (version->vna_next == 0) break;
        version_at += version->vna_next;
      }
      if (need->vn_next == 0 || names > kMostNames) return;
      at += need->vn_next;
    }
  }

  template <typename Text>
  void read_definitions(std::string_view table, std::uint64_t count, const Text& text) {
    count = std::min<std::uint64_t>(count, kMostNames);
    for (std::size_t at = 0; count > 0; --count) {
      const auto definition = value_at<Elf64_Verdef>(table, at);
      if (!definition) return;
      const auto name = value_at<Elf64_Verdaux>(table, at + definition->vd_aux);
      if (name && (definition->vd_flags & VER_FLG_BASE) == 0)
        file_.version_definitions.insert(text(name->vda_name));
      if (definition->vd_next == 0) return;
      at += definition->vd_next;
    }
  }

  void read_notes(std::string_view bytes) {
    constexpr std::size_t kLongest = 64 << 10;
    while (file_.notes.size() < 64) {
      const auto header = value_at<Elf64_Nhdr>(bytes, 0);
      if (!header) return;
      bytes.remove_prefix(sizeof *header);
      // Both are padded to four bytes.
      const std::uint64_t name = (std::uint64_t{header->n_namesz} + 3) & ~std::uint64_t{3};
      const std::uint64_t description = (std::uint64_t{header->n_descsz} + 3) & ~std::uint64_t{3};
      if (name > bytes.size() || header->n_descsz > bytes.size() - name ||
          header->n_descsz > kLongest)
        return;
      const auto name_size = header->n_namesz == 0 ? 0 : header->n_namesz - 1;  // including its NUL
      file_.notes.push_back({std::string(bytes.substr(0, name_size)), header->n_type,
                             std::string(bytes.substr(name, header->n_descsz))});
      bytes.remove_prefix(std::min<std::uint64_t>(name + description, bytes.size()));
    }
  }

  int fd_;
  Depth depth_;
  ElfFile file_;
  std::vector<Segment> segments_;
  struct Tables {
    /// addresses, and the size of the strings in bytes
    std::uint64_t strings = 0, strings_size = 0, symbols = 0, hash = 0, gnu_hash = 0;
  } tables_;
};

constexpr unsigned char kOwnOrder =
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;

/// Returns the beginning of an ELF file of this byte order, up to e_machine, whose offset is the
/// same in both classes.
std::optional<Elf32_Ehdr> beginning_of(int fd) {
  const auto bytes = part_of(fd, 0, offsetof(Elf32_Ehdr, e_version));
  if (!bytes || !bytes->starts_with(ELFMAG)) return std::nullopt;
  Elf32_Ehdr header{};
  std::memcpy(&header, bytes->data(), bytes->size());
  return header.e_ident[EI_DATA] == kOwnOrder ? std::optional(header) : std::nullopt;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Removes a number at the start of `text`, and returns it without leading zeros.
std::string_view take_number(std::string_view& text) {
  while (text.size() > 1 && text[0] == '0' && is_digit(text[1])) text.remove_prefix(1);
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
  const std::string_view number = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  text.remove_prefix(number.size());
  return number;
}

}  // namespace

Result<ElfFile> read_elf(int fd) {
  const auto beginning = beginning_of(fd);
  if (!beginning) return damaged("wrong byte order");
  if (beginning->e_ident[EI_CLASS] == ELFCLASS64) return ElfReader<Elf64>(fd).read();
  if (beginning->e_ident[EI_CLASS] == ELFCLASS32) return ElfReader<Elf32>(fd).read();
  return damaged("unknown class");
}

std::set<std::string> exported_functions(int fd, std::string_view prefix) {
  const auto beginning = beginning_of(fd);
  if (!beginning) return {};
  // Libraries of 32 bits are never compared.
  if (beginning->e_ident[EI_CLASS] != ELFCLASS64) return {};
  ElfReader<Elf64> reader(fd, ElfReader<Elf64>::Depth::name);
  return reader.read() ? reader.functions(prefix) : std::set<std::string>();
}

std::optional<std::string> soname_of(int fd) {
  const auto beginning = beginning_of(fd);
  if (!beginning) return std::nullopt;
  const bool is_64 = beginning->e_ident[EI_CLASS] == ELFCLASS64;
  if (!is_64 && beginning->e_ident[EI_CLASS] != ELFCLASS32) return std::nullopt;
  auto file = is_64 ? ElfReader<Elf64>(fd, ElfReader<Elf64>::Depth::name).read()
                    : ElfReader<Elf32>(fd, ElfReader<Elf32>::Depth::name).read();
  if (!file || file->type != ET_DYN || file->soname.empty()) return std::nullopt;
  return std::move(file->soname);
}

std::optional<std::uint16_t> elf_machine_of(int fd) {
  const auto beginning = beginning_of(fd);
  return beginning ? std::optional(beginning->e_machine) : std::nullopt;
}

std::uint16_t own_machine() {
#if defined(__x86_64__)
  return EM_X86_64;
#elif defined(__aarch64__)
  return EM_AARCH64;
#elif defined(__i386__)
  return EM_386;
#elif defined(__arm__)
  return EM_ARM;
#elif defined(__powerpc64__)
  return EM_PPC64;
#elif defined(__riscv)
  return EM_RISCV;
#else
  return EM_NONE;
#endif
}

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "aarch64";
    case EM_386: return "i386";
    case EM_ARM: return "arm";
    case EM_PPC64: return "ppc64";
    case EM_RISCV: return "riscv";
    default: return "machine " + std::to_string(machine);
  }
}

int compare_versions(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const auto left = take_number(a);
      const auto right = take_number(b);
      if (left.size() != right.size()) return left.size() < right.size() ? -1 : 1;
      if (const int order = left.compare(right); order != 0) return order;
      continue;
    }
    if (a[0] != b[0]) return a[0] < b[0] ? -1 : 1;
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return static_cast<int>(!a.empty()) - static_cast<int>(!b.empty());
}

std::string highest_glibc(const std::set<std::string>& versions) {
  constexpr std::string_view kPrefix = "GLIBC_";
  std::string highest;
  for (std::string_view version : versions) {
    if (!version.starts_with(kPrefix) || version.size() == kPrefix.size() ||
        !is_digit(version[kPrefix.size()]))
      continue;
    version.remove_prefix(kPrefix.size());
    if (highest.empty() || compare_versions(version, highest) > 0) highest = version;
  }
  return highest;
}

}  // namespace spc
