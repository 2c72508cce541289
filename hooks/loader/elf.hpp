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

/// A record of a PT_NOTE segment: the build id, the kernel that is asked for, ...
struct ElfNote {
  std::string name;  ///< GNU
  std::uint32_t type = 0;
  std::string description;  ///< bytes
};

/// What an ELF file says about itself in what the loader reads: program headers and dynamic section. Sections are not looked
/// at, since a stripped file need not have them.
struct ElfFile {
  std::uint16_t machine = 0;  ///< EM_X86_64, EM_AARCH64, EM_386, ...
  std::uint16_t type = 0;     ///< ET_DYN for libraries and most programs
  bool is_64 = true;
  std::string soname;               ///< empty: it has none
  std::string interpreter;          ///< of a program: its loader
  std::string rpath, runpath;       ///< colon-separated
  std::vector<std::string> needed;  ///< sonames, in the file's order
  /// Of the libraries it needs: which versions of their symbols, GLIBC_2.34 of libc.so.6.
  std::map<std::string, std::set<std::string>> version_needs;
  std::set<std::string> version_definitions;  ///< which it has itself, without the one that is only its name
  std::vector<ElfNote> notes;
};

/// Reads an ELF file of this byte order that may be made to deceive: single parts, none larger than a mebibyte, and every
/// offset is checked. What is no ELF file, or a damaged one, is ErrorKind::invalid; the descriptor stays the caller's.
Result<ElfFile> read_elf(int fd);

/// The soname of a library, or nothing if it is not a library or has none.
std::optional<std::string> soname_of(int fd);
/// e_machine of an ELF file of this byte order; nothing if it is none.
std::optional<std::uint16_t> elf_machine_of(int fd);

/// EM_X86_64 on such a node: what this program was built for.
std::uint16_t own_machine();
/// x86-64, aarch64, i386, arm, or its number: for messages.
std::string machine_name(std::uint16_t machine);

/// Compares 2.9 with 2.34, 550.54.15 with 535: runs of digits as numbers. <0, 0, >0.
int compare_versions(std::string_view a, std::string_view b);
/// The highest GLIBC_x.y of these without its prefix, empty if there is none: of definitions the release of a C library.
std::string highest_glibc(const std::set<std::string>& versions);

}  // namespace spc
