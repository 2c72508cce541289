#include <dlfcn.h>
#include <fcntl.h>
#include <gnu/lib-names.h>
#include <link.h>

#include <algorithm>
#include <random>

#include "hooks/loader/elf.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/hooks/elf_maker.hpp"

namespace spc {
namespace {

UniqueFd memory_file(std::string_view bytes) {
  return std::move(sealed_memory_file("file", bytes)).value();
}

UniqueFd loaded_library(const char* soname) {
  void* handle = ::dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
  REQUIRE(handle != nullptr);
  link_map* map = nullptr;
  REQUIRE(::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0);
  UniqueFd file(::open(map->l_name, O_RDONLY | O_CLOEXEC));
  ::dlclose(handle);
  REQUIRE(file);
  return file;
}

TEST_CASE("elf_made_library_is_read") {
  const MadeElf made{.soname = "libmpi.so.12",
                     .needed = {"libfabric.so.1", "libc.so.6"},
                     .version_needs = {{"libc.so.6", {"GLIBC_2.2.5", "GLIBC_2.34"}},
                                       {"libfabric.so.1", {"FABRIC_1.1"}}},
                     .version_definitions = {"MPI_1", "MPI_2"},
                     .runpath = "/opt/mpi/lib"};
  const auto file = made.file();
  const auto elf = read_elf(file.get());
  REQUIRE(elf);
  CHECK(elf->soname == "libmpi.so.12");
  CHECK(elf->machine == EM_X86_64);
  CHECK(elf->is_64);
  CHECK(elf->needed == made.needed);
  CHECK(elf->runpath == "/opt/mpi/lib");
  CHECK(elf->rpath.empty());
  CHECK(elf->version_needs.at("libc.so.6") == std::set<std::string>{"GLIBC_2.2.5", "GLIBC_2.34"});
  CHECK(elf->version_needs.at("libfabric.so.1") == std::set<std::string>{"FABRIC_1.1"});
  CHECK(elf->version_definitions == std::set<std::string>{"MPI_1", "MPI_2"});
  CHECK(soname_of(file.get()) == "libmpi.so.12");
  CHECK(elf_machine_of(file.get()) == EM_X86_64);
}

TEST_CASE("elf_libc_and_own_program_are_read") {
  const auto libc = read_elf(loaded_library(LIBC_SO).get());
  REQUIRE(libc);
  CHECK(libc->soname == LIBC_SO);
  CHECK(libc->machine == own_machine());
  CHECK(highest_glibc(libc->version_definitions) ==
        std::to_string(__GLIBC__) + "." + std::to_string(__GLIBC_MINOR__));

  const UniqueFd own(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const auto program = read_elf(own.get());
  REQUIRE(program);
  CHECK(std::find(program->needed.begin(), program->needed.end(), LIBC_SO) !=
        program->needed.end());
  CHECK(!highest_glibc(program->version_needs.at(LIBC_SO)).empty());
  CHECK(program->interpreter.find("/ld-linux") != std::string::npos);
  CHECK(!soname_of(own.get()));
  const auto is_build_id = [](const ElfNote& note) {
    return note.name == "GNU" && note.type == NT_GNU_ABI_TAG && note.description.size() == 16;
  };
  CHECK(std::find_if(program->notes.begin(), program->notes.end(), is_build_id) !=
        program->notes.end());
}

TEST_CASE("elf_other_files_are_refused") {
  for (const std::string& bytes : {std::string(), std::string("\177ELF"),
                                   std::string("INPUT(libc.so.6)\n"), std::string(4096, '\0')}) {
    const auto file = memory_file(bytes);
    CHECK(!read_elf(file.get()));
    CHECK(!elf_machine_of(file.get()));
    CHECK(!soname_of(file.get()));
  }
  std::string swapped = MadeElf{.soname = "libx.so.1"}.bytes();
  swapped[EI_DATA] = ELFDATA2MSB;
  CHECK(!read_elf(memory_file(swapped).get()));
  CHECK(!read_elf(UniqueFd(::open("/", O_RDONLY | O_CLOEXEC)).get()));
}

TEST_CASE("elf_damaged_library_is_read_safely") {
  const std::string whole = MadeElf{.soname = "libx.so.1",
                                    .needed = {"liby.so.1"},
                                    .version_needs = {{"libc.so.6", {"GLIBC_2.17"}}}}
                                .bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto elf = read_elf(memory_file(std::string_view(whole).substr(0, size)).get());
    if (size < sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr)) CHECK(!elf);
  }
  std::mt19937 random(1);
  int readable = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole;
    for (int i = 0; i < 3; ++i)
      bytes[4 + random() % (bytes.size() - 4)] =
          static_cast<char>(random() % 4 == 0 ? 0xff : random());
    if (const auto elf = read_elf(memory_file(bytes).get()))
      readable += static_cast<int>(elf->needed.size() <= 4096);
  }
  CHECK(readable > 0);
}

TEST_CASE("versions_compare_by_numbers") {
  CHECK(compare_versions("2.9", "2.34") < 0);
  CHECK(compare_versions("550.54.15", "535") > 0);
  CHECK(compare_versions("2.34", "2.34") == 0);
  CHECK(compare_versions("2.34", "2.34.1") < 0);
  CHECK(compare_versions("010", "9") > 0);
  CHECK(compare_versions("99999999999999999999999", "99999999999999999999998") > 0);
  CHECK(highest_glibc({"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.9", "GLIBC_PRIVATE"}) == "2.34");
  CHECK(highest_glibc({"GLIBC_PRIVATE", "GLIBCXX_3.4.30"}).empty());
}

}  // namespace
}  // namespace spc
