#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.hpp"
#include "base/unique_fd.hpp"

/// Flags of an x86-64 library in ld.so.cache.
inline constexpr std::uint32_t kX86 = 0x0303;

/// Architecture of this node's libraries, and their directory on Debian.
#if defined(__aarch64__)
inline constexpr std::uint16_t kOwnMachine = EM_AARCH64;
inline constexpr char kLibraries[] = "/usr/lib/aarch64-linux-gnu";
#else
inline constexpr std::uint16_t kOwnMachine = EM_X86_64;
inline constexpr char kLibraries[] = "/usr/lib/x86_64-linux-gnu";
#endif

/// Converts output to the x86-64 form of the golden files, which were written on x86-64.
inline std::string as_on_x86(std::string text) {
  constexpr std::string_view kOther = "aarch64-linux-gnu";
  for (auto at = text.find(kOther); at != std::string::npos; at = text.find(kOther))
    text.replace(at, kOther.size(), "x86_64-linux-gnu");
  return text;
}

/// A small library for tests of the loader and of MPI: a 64-bit ELF file with dynamic sections.
struct MadeElf {
  std::string soname;
  std::vector<std::string> needed;
  std::map<std::string, std::vector<std::string>> version_needs;
  std::vector<std::string> version_definitions;
  std::string runpath;
  std::uint16_t machine = EM_X86_64;
  std::vector<std::string> functions;  ///< exported functions
  bool gnu_hash = true;                ///< as current libraries have it; false: the older table

  [[nodiscard]] std::string bytes() const {
    std::string strings(1, '\0');
    const auto put = [&](const std::string& text) {
      const auto at = strings.size();
      strings.append(text) += '\0';
      return static_cast<std::uint32_t>(at);
    };
    std::vector<Elf64_Dyn> dynamic;
    const auto add = [&](std::int64_t tag, std::uint64_t value) {
      Elf64_Dyn entry{};
      entry.d_tag = tag;
      entry.d_un.d_val = value;
      dynamic.push_back(entry);
    };
    if (!soname.empty()) add(DT_SONAME, put(soname));
    if (!runpath.empty()) add(DT_RUNPATH, put(runpath));
    for (const auto& name : needed) add(DT_NEEDED, put(name));

    std::string needs;
    std::size_t left = version_needs.size();
    for (const auto& [file, versions] : version_needs) {
      Elf64_Verneed need{1, static_cast<Elf64_Half>(versions.size()), put(file),
                         sizeof(Elf64_Verneed), 0};
      if (--left > 0)
        need.vn_next =
            static_cast<Elf64_Word>(sizeof need + versions.size() * sizeof(Elf64_Vernaux));
      append(needs, need);
      for (const auto& version : versions) {
        append(needs, Elf64_Vernaux{0, 0, 2, put(version),
                                    &version == &versions.back()
                                        ? 0U
                                        : static_cast<unsigned>(sizeof(Elf64_Vernaux))});
      }
    }
    std::string definitions;
    for (std::size_t i = 0; i < version_definitions.size(); ++i) {
      Elf64_Verdef definition{};
      definition.vd_version = 1;
      definition.vd_ndx = static_cast<Elf64_Half>(i + 1);
      definition.vd_cnt = 1;
      definition.vd_aux = sizeof definition;
      if (i + 1 < version_definitions.size())
        definition.vd_next = sizeof definition + sizeof(Elf64_Verdaux);
      append(definitions, definition);
      append(definitions, Elf64_Verdaux{put(version_definitions[i]), 0});
    }

    std::string symbols, hash;
    if (!functions.empty()) {
      append(symbols, Elf64_Sym{});
      append(symbols,
             Elf64_Sym{put("not_here"), ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, SHN_UNDEF, 0, 0});
      for (const auto& name : functions)
        append(symbols,
               Elf64_Sym{put(name), ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 1, 0x10000, 8});
      const auto count = static_cast<std::uint32_t>(functions.size() + 2);
      // One bucket, which begins after the undefined symbol, and a chain to the last symbol.
      if (gnu_hash) {
        for (const std::uint32_t word : {1U, 2U, 1U, 0U, 0U, 0U, 2U}) append(hash, word);
        for (std::uint32_t i = 2; i < count; ++i)
          append(hash, std::uint32_t{i + 1 == count ? 1U : 2U});
      } else {
        for (const std::uint32_t word : {1U, count, 0U}) append(hash, word);
      }
    }
    strings.resize((strings.size() + 7) / 8 * 8);

    // The file is one segment that begins at this address.
    constexpr std::uint64_t kAddress = 0x10000;
    const std::uint64_t strings_at = sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr);
    const std::uint64_t needs_at = strings_at + strings.size();
    const std::uint64_t definitions_at = needs_at + needs.size();
    const std::uint64_t symbols_at = definitions_at + definitions.size();
    const std::uint64_t hash_at = symbols_at + symbols.size();
    const std::uint64_t dynamic_at = hash_at + hash.size();
    if (!functions.empty()) {
      add(DT_SYMTAB, kAddress + symbols_at);
      add(gnu_hash ? DT_GNU_HASH : DT_HASH, kAddress + hash_at);
    }
    add(DT_STRTAB, kAddress + strings_at);
    add(DT_STRSZ, strings.size());
    if (!needs.empty()) {
      add(DT_VERNEED, kAddress + needs_at);
      add(DT_VERNEEDNUM, version_needs.size());
    }
    if (!definitions.empty()) {
      add(DT_VERDEF, kAddress + definitions_at);
      add(DT_VERDEFNUM, version_definitions.size());
    }
    add(DT_NULL, 0);
    const std::uint64_t dynamic_size = dynamic.size() * sizeof(Elf64_Dyn);

    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_DYN;
    header.e_machine = machine;
    header.e_version = EV_CURRENT;
    header.e_phoff = sizeof header;
    header.e_ehsize = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 2;
    std::string file;
    append(file, header);
    append(file, Elf64_Phdr{PT_LOAD, PF_R, 0, kAddress, kAddress, dynamic_at + dynamic_size,
                            dynamic_at + dynamic_size, 4096});
    append(file, Elf64_Phdr{PT_DYNAMIC, PF_R, dynamic_at, kAddress + dynamic_at,
                            kAddress + dynamic_at, dynamic_size, dynamic_size, 8});
    file += strings + needs + definitions + symbols + hash;
    for (const auto& entry : dynamic) append(file, entry);
    return file;
  }

  [[nodiscard]] spc::UniqueFd file() const {
    return std::move(spc::sealed_memory_file("made.so", bytes())).value();
  }

 private:
  template <typename T>
  static void append(std::string& bytes, const T& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
};

/// Returns a library with only a soname and an architecture.
inline std::string elf_library(const std::string& soname, std::uint16_t machine = EM_X86_64) {
  MadeElf made;
  made.soname = soname;
  made.machine = machine;
  return made.bytes();
}
