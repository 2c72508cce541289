#include <sys/stat.h>

#include <algorithm>
#include <chrono>

#include "hooks/loader/elf.hpp"
#include "hooks/loader/ld_cache.hpp"
#include "hooks/loader/loader.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/hooks/elf_maker.hpp"
#include "unit/hooks/image_root.hpp"

namespace spc {
namespace {

constexpr char kCache[] = "/etc/ld.so.cache";
const std::string kFirst = "/usr/lib/spank-container/first";

LibraryEdit driver(const std::string& soname, const std::string& version, bool before = true) {
  return {soname, "/usr/lib/" + soname.substr(0, soname.find(".so")) + ".so." + version, before,
          EM_X86_64};
}

/// Returns soname and path of each entry.
std::vector<std::string> entries_of(const ImageRoot& root) {
  std::vector<std::string> entries;
  auto cache = LdCache::parse(root.text(kCache));
  REQUIRE(cache);
  for (const auto& entry : cache->entries())
    entries.push_back(std::string(entry.soname) + " " + std::string(entry.path));
  return entries;
}

void give_glibc(const ImageRoot& root) {
  root.put("/lib64/ld-linux-x86-64.so.2", elf_library("ld-linux-x86-64.so.2"));
}

void give_cache(const ImageRoot& root,
                const std::vector<std::pair<std::string, std::string>>& entries) {
  LdCache cache;
  for (const auto& [soname, path] : entries) cache.add_last(soname, path, kX86);
  root.put(kCache, cache.serialize());
}

std::string target_of(const Edits& edits, const std::string& path) {
  for (const auto& link : edits.symlinks) {
    if (link.path == path) return link.target;
  }
  return "";
}

const FileEdit* file_of(const Edits& edits, const std::string& path) {
  for (const auto& file : edits.files) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

Edits edits_for(const ImageRoot& root, const std::vector<LibraryEdit>& libraries,
                const std::vector<LibraryDirectoryEdit>& directories = {}) {
  auto edits = loader_edits(root.context(), libraries, directories);
  REQUIRE(edits);
  return *std::move(edits);
}

TEST_CASE("loader_node_library_precedes_or_fills_image") {
  ImageRoot root;
  give_glibc(root);
  give_cache(root, {{"libcuda.so.1", "/image/libcuda.so.1"}, {"libz.so.1", "/image/libz.so.1"}});
  const Edits edits =
      edits_for(root, {driver("libcuda.so.1", "550"), driver("libz.so.1", "9", false),
                       driver("libnew.so.1", "1", false)});
  root.apply(edits);
  CHECK(entries_of(root) == std::vector<std::string>{"libz.so.1 /image/libz.so.1",
                                                     "libnew.so.1 /usr/lib/libnew.so.1",
                                                     "libcuda.so.1 /usr/lib/libcuda.so.1",
                                                     "libcuda.so.1 /image/libcuda.so.1"});
  CHECK(target_of(edits, "/usr/lib/libcuda.so.1") == "libcuda.so.550");
  CHECK(target_of(edits, kFirst + "/libcuda.so.1") == "/usr/lib/libcuda.so.550");
  CHECK(target_of(edits, "/usr/lib/libz.so.1").empty());
  CHECK(root.text("/etc/ld.so.conf.d/00-spank-container.conf").ends_with("\n" + kFirst + "\n"));
  CHECK(root.text("/etc/ld.so.conf.d/zz-spank-container.conf")
            .ends_with("\n/usr/lib/spank-container/last\n"));
  CHECK(edits.environment == Edits::Environment());
}

TEST_CASE("loader_image_library_outside_cache_is_found") {
  ImageRoot root;
  give_glibc(root);
  give_cache(root, {});
  root.put("/usr/lib64/libGL.so.1", elf_library("libGL.so.1"));
  root.put("/usr/lib64/libEGL.so.1", "");  // a mount target left by an earlier start
  root.apply(
      edits_for(root, {driver("libGL.so.1", "550", false), driver("libEGL.so.1", "550", false)}));
  CHECK(entries_of(root) == std::vector<std::string>{"libEGL.so.1 /usr/lib/libEGL.so.1"});
}

TEST_CASE("loader_glibc_image_without_cache_gets_one") {
  ImageRoot root;
  give_glibc(root);
  const Edits edits = edits_for(root, {driver("libcuda.so.1", "550")});
  root.apply(edits);
  CHECK(entries_of(root) == std::vector<std::string>{"libcuda.so.1 /usr/lib/libcuda.so.1"});
  REQUIRE(edits.notes.size() == 1);
  CHECK(edits.notes[0] == "the image has no /etc/ld.so.cache: one is created");
}

TEST_CASE("loader_broken_cache_counts_as_absent") {
  for (const int kind : {0, 1, 2, 3, 4}) {
    ImageRoot root;
    give_glibc(root);
    root.put(kCache, kind == 0 ? "garbage" : "");
    if (kind >= 1) std::filesystem::remove(root.path(kCache));
    if (kind == 1) REQUIRE(::mkfifo(root.path(kCache).c_str(), 0644) == 0);
    if (kind == 2)
      // Inside the image, this link points to itself.
      root.link(kCache, "../../../../../../../../etc/ld.so.cache");
    if (kind == 3) root.link(kCache, "/proc/self/root/etc/ld.so.cache");
    if (kind == 4) {
      root.put(kCache, "glibc-ld.so.cache1.1");
      std::filesystem::resize_file(root.path(kCache), std::uintmax_t{4} << 30);
    }
    const Edits edits = edits_for(root, {driver("libcuda.so.1", "550")});
    CHECK(edits.notes.size() == 1);
    root.apply(edits);
    CHECK(entries_of(root) == std::vector<std::string>{"libcuda.so.1 /usr/lib/libcuda.so.1"});
  }
}

TEST_CASE("loader_directory_in_place_of_cache_uses_variable") {
  ImageRoot root;
  give_glibc(root);
  std::filesystem::create_directories(root.path(kCache));
  const Edits edits = edits_for(root, {driver("libcuda.so.1", "550")});
  CHECK(file_of(edits, kCache) == nullptr);
  CHECK(edits.environment.prepend.at("LD_LIBRARY_PATH") == kFirst);
}

TEST_CASE("loader_libraries_of_earlier_start_are_removed") {
  ImageRoot root;
  give_glibc(root);
  give_cache(root, {{"libz.so.1", "/image/libz.so.1"}, {"libold.so.1", "/usr/lib/libold.so.1"}});
  root.apply(edits_for(root, {driver("libcuda.so.1", "550"), driver("libold.so.1", "2")}));
  root.apply(edits_for(root, {driver("libcuda.so.1", "560")}));
  CHECK(entries_of(root) == std::vector<std::string>{"libz.so.1 /image/libz.so.1",
                                                     "libold.so.1 /usr/lib/libold.so.1",
                                                     "libcuda.so.1 /usr/lib/libcuda.so.1"});
  root.apply(edits_for(root, {}));
  CHECK(entries_of(root) ==
        std::vector<std::string>{"libz.so.1 /image/libz.so.1", "libold.so.1 /usr/lib/libold.so.1"});
  CHECK(root.text("/etc/ld.so.conf.d/00-spank-container.conf").find("\n/") == std::string::npos);
}

TEST_CASE("loader_without_libraries_changes_nothing") {
  ImageRoot root;
  give_glibc(root);
  give_cache(root, {});
  CHECK(edits_for(root, {}) == Edits());
}

TEST_CASE("loader_image_directory_is_searched_first") {
  ImageRoot root;
  give_glibc(root);
  give_cache(root, {{"libcuda.so.1", "/image/libcuda.so.1"}});
  const std::string compat = "/usr/local/cuda/compat";
  root.put(compat + "/libcuda.so.560.35", elf_library("libcuda.so.1"));
  root.link(compat + "/libcuda.so.1", "libcuda.so.560.35");
  root.link(compat + "/libcuda.so", "libcuda.so.1");
  root.put(compat + "/libnvidia-nvvm.so.4.0.0", elf_library("libnvidia-nvvm.so.4"));
  root.put(compat + "/libarm.so.1", elf_library("libarm.so.1", EM_AARCH64));
  root.put(compat + "/libtext.so", "INPUT(libcuda.so)");
  root.link(compat + "/libloop.so.1", "libloop.so.1");
  root.link(compat + "/libout.so.1",
            "../../../../../../../../../../../../usr/lib/x86_64-linux-gnu/libc.so.6");
  REQUIRE(::mkfifo(root.path(compat + "/libfifo.so.1").c_str(), 0644) == 0);
  root.apply(edits_for(root, {driver("libcuda.so.1", "550")}, {{compat, true}}));
  CHECK(entries_of(root) ==
        std::vector<std::string>{"libnvidia-nvvm.so.4 " + compat + "/libnvidia-nvvm.so.4.0.0",
                                 "libcuda.so.1 " + compat + "/libcuda.so.1",
                                 "libcuda.so.1 /usr/lib/libcuda.so.1",
                                 "libcuda.so.1 /image/libcuda.so.1"});
  const std::string configuration = root.text("/etc/ld.so.conf.d/00-spank-container.conf");
  CHECK(configuration.ends_with("\n" + compat + "\n" + kFirst + "\n"));

  // A directory may be a dangling or circular link, which counts as an empty directory.
  root.link("/loop", "/loop");
  root.apply(edits_for(root, {}, {{"/loop", true}, {"/nowhere", false}}));
  CHECK(entries_of(root) == std::vector<std::string>{"libcuda.so.1 /image/libcuda.so.1"});
}

TEST_CASE("loader_musl_image_gets_directories") {
  ImageRoot root;
  root.put("/lib/ld-musl-x86_64.so.1", elf_library("libc.musl-x86_64.so.1"));
  const char* path = "/etc/ld-musl-x86_64.path";
  Edits edits = edits_for(root, {driver("libcuda.so.1", "550"), driver("libnew.so.1", "1", false)},
                          {{"/compat", true}});
  CHECK(file_of(edits, kCache) == nullptr);
  root.apply(edits);
  CHECK(root.text(path) ==
        "/compat:" + kFirst + ":/lib:/usr/local/lib:/usr/lib:/usr/lib/spank-container/last\n");
  CHECK(target_of(edits, kFirst + "/libcuda.so.1") == "/usr/lib/libcuda.so.550");
  edits = edits_for(root, {driver("libcuda.so.1", "550")});
  REQUIRE(file_of(edits, path) != nullptr);

  CHECK(file_of(edits, path)->content == kFirst + ":/lib:/usr/local/lib:/usr/lib\n");

  root.put(path, "/opt/lib\n/lib:/usr/lib\n");
  root.apply(edits_for(root, {driver("libcuda.so.1", "550")}));
  CHECK(root.text(path) == kFirst + ":/opt/lib:/lib:/usr/lib\n");
  root.apply(edits_for(root, {driver("libcuda.so.1", "550")}, {{"/usr/lib", true}}));
  CHECK(root.text(path) == "/usr/lib:" + kFirst + ":/opt/lib:/lib:/usr/lib\n");
  root.put(path, "/opt/lib\n/lib:/usr/lib\n");
  root.apply(edits_for(root, {}));
  CHECK(root.text(path) == "/opt/lib:/lib:/usr/lib\n");
  CHECK(file_of(edits_for(root, {}), kCache) == nullptr);
}

TEST_CASE("loader_image_with_two_libcs_gets_both") {
  ImageRoot root;
  give_glibc(root);
  root.put("/lib/ld-musl-x86_64.so.1", elf_library("libc.musl-x86_64.so.1"));
  const Edits edits = edits_for(root, {driver("libcuda.so.1", "550")});
  CHECK(file_of(edits, kCache) != nullptr);
  CHECK(file_of(edits, "/etc/ld-musl-x86_64.path") != nullptr);
}

TEST_CASE("loader_unknown_gets_library_path") {
  ImageRoot root;
  const Edits edits = edits_for(root, {driver("libcuda.so.1", "550")});
  CHECK(edits.files.empty());
  CHECK(edits.environment.prepend.at("LD_LIBRARY_PATH") == kFirst);
  CHECK(target_of(edits, kFirst + "/libcuda.so.1") == "/usr/lib/libcuda.so.550");
}

TEST_CASE("loader_image_of_other_architecture_is_left_alone") {
  ImageRoot root;
  root.put("/lib/ld-linux-aarch64.so.1", elf_library("ld-linux-aarch64.so.1", EM_AARCH64));
  root.put("/lib64/ld-linux-x86-64.so.2",
           elf_library("ld-linux-x86-64.so.2", EM_AARCH64));  // only the name
  const Edits edits = edits_for(root, {driver("libcuda.so.1", "550")});
  CHECK(edits.symlinks.empty());
  CHECK(edits.environment == Edits::Environment());
  REQUIRE(!edits.notes.empty());
  CHECK(edits.notes.back().starts_with("1 libraries are skipped"));
}

TEST_CASE("loader_32_bit_libraries_get_own_entries") {
  ImageRoot root;
  give_glibc(root);
  root.put("/lib/ld-linux.so.2", elf_library("ld-linux.so.2", EM_386));
  LibraryEdit small{"libcuda.so.1", "/usr/lib32/libcuda.so.550", true, EM_386};
  root.apply(edits_for(root, {driver("libcuda.so.1", "550"), small}));
  auto cache = LdCache::parse(root.text(kCache));
  REQUIRE(cache);
  CHECK(cache->find("libcuda.so.1", 0x0003)->path == "/usr/lib32/libcuda.so.1");
  CHECK(cache->find("libcuda.so.1", kX86)->path == "/usr/lib/libcuda.so.1");
}

TEST_CASE("loader_forty_libraries_with_large_cache_are_fast", "[.]") {
  ImageRoot root;
  give_glibc(root);
  std::vector<std::pair<std::string, std::string>> entries;
  for (int i = 0; i < 5000; ++i) {
    const std::string soname = "libsomething-" + std::to_string(i) + ".so." + std::to_string(i % 7);
    entries.emplace_back(soname, "/usr/lib/x86_64-linux-gnu/" + soname);
  }
  give_cache(root, entries);
  std::vector<LibraryEdit> libraries;
  for (int i = 0; i < 40; ++i)
    libraries.push_back(driver("libdriver-" + std::to_string(i) + ".so.1", "550", i % 4 != 0));
  double best = 1e9;
  for (int round = 0; round < 50; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    const Edits edits = edits_for(root, libraries);
    best = std::min(
        best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                  .count());
    REQUIRE(edits.symlinks.size() == 80);
  }
  WARN("5000 entries, 40 libraries: " << best << " us");
}

}  // namespace
}  // namespace spc
