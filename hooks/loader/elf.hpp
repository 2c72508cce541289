#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A record of a PT_NOTE segment: the build ID, the required kernel, ...
struct ElfNote {
  std::string name;  ///< GNU
  std::uint32_t type = 0;
  std::string description;  ///< bytes
};

/// The parts of an ELF file that the loader reads: program headers and dynamic section. Sections
/// are ignored, because a stripped file may lack them.
struct ElfFile {
  std::uint16_t machine = 0;  ///< EM_X86_64, EM_AARCH64, EM_386, ...
  std::uint16_t type = 0;     ///< ET_DYN for libraries and most programs
  bool is_64 = true;
  std::string soname;               ///< empty: none
  std::string interpreter;          ///< of a program: path of its loader
  std::string rpath, runpath;       ///< colon-separated
  std::vector<std::string> needed;  ///< sonames, in file order
  /// Symbol versions that it needs from each library, such as GLIBC_2.34 of libc.so.6.
  std::map<std::string, std::set<std::string>> version_needs;
  /// versions defined by the library itself, without the one that is only its name
  std::set<std::string> version_definitions;
  std::vector<ElfNote> notes;
};

/// Reads an untrusted ELF file of this byte order: in parts of at most 1 MiB, with every offset
/// checked. A file that is not ELF, or is damaged, is ErrorKind::invalid. The caller owns the
/// descriptor.
Result<ElfFile> read_elf(int fd);

/// Returns the names of the functions with this prefix that a 64-bit library exports; empty for
/// other files.
[[gnu::cold]] std::set<std::string> exported_functions(int fd, std::string_view prefix);

/// Returns the soname of a library; empty if it is not a library or has none.
std::optional<std::string> soname_of(int fd);
/// Returns e_machine of an ELF file of this byte order; empty if it is not one.
std::optional<std::uint16_t> elf_machine_of(int fd);

/// Returns the architecture that this program was built for, such as EM_X86_64.
std::uint16_t own_machine();
/// Returns x86-64, aarch64, i386, arm, or its number: for messages.
std::string machine_name(std::uint16_t machine);

/// Compares 2.9 with 2.34, 550.54.15 with 535: digit runs numerically. Returns <0, 0, >0.
int compare_versions(std::string_view a, std::string_view b);
/// Returns the highest GLIBC_x.y of these without its prefix, empty if there is none: for
/// definitions, the release of a C library.
std::string highest_glibc(const std::set<std::string>& versions);

}  // namespace spc
