#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "base/file.hpp"
#include "hooks/loader/ld_cache.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/hooks/elf_maker.hpp"

namespace spc {
namespace {

constexpr std::uint32_t kI386 = 0x0003;

struct Row {
  std::string soname, path;
  std::uint32_t flags = kX86;
  std::uint64_t hwcap = 0;
};

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Returns a cache as written by ldconfig of glibc 2.31 and earlier: the current format, strings
/// separate, in the given order.
std::string cache_of(const std::vector<Row>& rows, std::uint8_t order = 0) {
  std::string entries, texts;
  const std::size_t begin = 48 + rows.size() * 24;
  for (const Row& row : rows) {
    append(entries, row.flags);
    append(entries, static_cast<std::uint32_t>(begin + texts.size()));
    append(entries, static_cast<std::uint32_t>(begin + texts.size() + row.soname.size() + 1));
    append(entries, 0U);
    append(entries, row.hwcap);
    texts.append(row.soname).append(1, '\0').append(row.path).append(1, '\0');
  }
  std::string file = "glibc-ld.so.cache1.1";
  append(file, static_cast<std::uint32_t>(rows.size()));
  append(file, static_cast<std::uint32_t>(texts.size()));
  file += static_cast<char>(order);
  file.resize(48);
  return file + entries + texts;
}

/// Returns the cache preceded by the table of libc5.
std::string old_cache_of(const std::vector<Row>& rows) {
  std::string file = "ld.so-1.7.0";
  file.resize(12);
  append(file, static_cast<std::uint32_t>(rows.size()));
  for (std::size_t i = 0; i < rows.size() * 3; ++i) append(file, 3U);
  file.resize((file.size() + 7) / 8 * 8);
  return file + cache_of(rows);
}

std::vector<Row> rows_of(const LdCache& cache) {
  std::vector<Row> rows;
  for (const auto& entry : cache.entries())
    rows.push_back({std::string(entry.soname), std::string(entry.path), entry.flags, entry.hwcap});
  return rows;
}

LdCache parsed(const std::string& bytes) {
  auto cache = LdCache::parse(bytes);
  REQUIRE(cache);
  return *std::move(cache);
}

std::vector<std::string> paths_of(const LdCache& cache) {
  std::vector<std::string> paths;
  for (const auto& row : rows_of(cache)) paths.push_back(row.path);
  return paths;
}

const std::vector<Row> kRows{{"libz.so.1", "/lib/libz.so.1"},
                             {"libmpi.so.40", "/usr/lib/libmpi.so.40"},
                             {"libmpi.so.12", "/usr/lib/libmpi.so.12"},
                             {"libc.so.6", "/lib/libc.so.6"},
                             {"libc.so.6", "/lib32/libc.so.6", kI386}};

TEST_CASE("ld_cache_current_and_old_format_are_read") {
  for (const std::string& bytes : {cache_of(kRows), cache_of(kRows, 2), old_cache_of(kRows)}) {
    const LdCache cache = parsed(bytes);
    REQUIRE(cache.entries().size() == kRows.size());
    for (std::size_t i = 0; i < kRows.size(); ++i) {
      CHECK(cache.entries()[i].soname == kRows[i].soname);
      CHECK(cache.entries()[i].path == kRows[i].path);
      CHECK(cache.entries()[i].flags == kRows[i].flags);
    }
    REQUIRE(cache.find("libc.so.6", kI386) != nullptr);
    CHECK(cache.find("libc.so.6", kI386)->path == "/lib32/libc.so.6");
    CHECK(cache.find("libc.so.6", kX86)->path == "/lib/libc.so.6");
    CHECK(cache.find("libm.so.6", kX86) == nullptr);
  }
}

TEST_CASE("ld_cache_added_entries_are_found_first_or_last") {
  LdCache cache = parsed(cache_of(kRows));
  cache.add_first("libmpi.so.12", "/ours/a/libmpi.so.12", kX86);
  cache.add_first("libmpi.so.12", "/ours/b/libmpi.so.12", kX86);
  cache.add_last("libz.so.1", "/ours/libz.so.1", kX86);
  cache.add_last("libnew.so.3", "/ours/libnew.so.3", kX86);
  cache.add_first("libzzz.so", "/ours/odd.so", kX86);
  CHECK(paths_of(parsed(cache.serialize())) ==
        std::vector<std::string>{"/ours/odd.so", "/lib/libz.so.1", "/ours/libz.so.1",
                                 "/ours/libnew.so.3", "/usr/lib/libmpi.so.40",
                                 "/ours/a/libmpi.so.12", "/ours/b/libmpi.so.12",
                                 "/usr/lib/libmpi.so.12", "/lib/libc.so.6", "/lib32/libc.so.6"});
}

TEST_CASE("ld_cache_entries_are_removed") {
  LdCache cache = parsed(cache_of(kRows));
  cache.remove_if([](const LdCache::Entry& entry) { return entry.path.starts_with("/usr/"); });
  CHECK(paths_of(parsed(cache.serialize())) ==
        std::vector<std::string>{"/lib/libz.so.1", "/lib/libc.so.6", "/lib32/libc.so.6"});
}

TEST_CASE("ld_cache_empty_is_serialized") {
  LdCache cache;
  cache.add_first("libcuda.so.1", "/usr/lib/libcuda.so.1", kX86);
  const std::string bytes = cache.serialize();
  CHECK(bytes.substr(0, 20) == "glibc-ld.so.cache1.1");
  CHECK(paths_of(parsed(bytes)) == std::vector<std::string>{"/usr/lib/libcuda.so.1"});
}

TEST_CASE("ld_cache_sonames_compare_as_in_the_loader") {
  CHECK(compare_as_loader("libmpi.so.9", "libmpi.so.12") < 0);
  CHECK(compare_as_loader("libmpi.so.012", "libmpi.so.12") == 0);
  CHECK(compare_as_loader("liba.so", "libb.so") < 0);
  CHECK(compare_as_loader("lib1.so", "libb.so") > 0);  // digits sort after all other characters
  CHECK(compare_as_loader("libx.so.1", "libx.so") > 0);
  CHECK(compare_as_loader("libx.so.4294967297", "libx.so.1") ==
        0);  // 32 bits, as in the loader
  CHECK(compare_as_loader("", "") == 0);
}

TEST_CASE("ld_cache_unsorted_entries_are_sorted") {
  std::vector<Row> shuffled{kRows.rbegin(), kRows.rend()};
  const LdCache cache = parsed(cache_of(shuffled));
  CHECK(cache.entries().front().soname == "libz.so.1");
  CHECK(cache.find("libmpi.so.12", kX86) != nullptr);
}

TEST_CASE("ld_cache_wrong_file_is_refused") {
  const std::string whole = cache_of(kRows);
  const std::string old = old_cache_of(kRows);
  std::string big_endian = whole;
  big_endian[28] = 3;
  std::string far = whole;
  std::memset(far.data() + 48 + 4, 0x7f, 4);
  std::string extensions = whole;
  extensions[32] = 49;
  for (const std::string& bytes :
       {std::string(), std::string("glibc-ld.so.cache1.1"), std::string(100, 'x'),
        std::string(100, '\0'), whole.substr(0, 60), whole.substr(0, whole.size() - 1), big_endian,
        far, extensions, old.substr(0, 16), old.substr(0, 100)}) {
    const auto cache = LdCache::parse(bytes);
    REQUIRE(!cache);
    CHECK(cache.error().kind() == ErrorKind::invalid);
  }
}

TEST_CASE("ld_cache_hardware_entries_keep_their_names") {
  // As written by glibc 2.33 and later: a string, then a directory of one section that contains the
  // string's position.
  std::string bytes = cache_of(
      {{"libx.so.1", "/v3/libx.so.1", kX86, (std::uint64_t{1} << 62)}, {"libx.so.1", "/x86-64-v3"}},
      2);
  const auto name = static_cast<std::uint32_t>(bytes.find("x86-64-v3"));
  bytes.resize((bytes.size() + 3) / 4 * 4);
  const auto begin = static_cast<std::uint32_t>(bytes.size());
  for (const std::uint32_t value : {0xeaa42174U, 1U, 1U, 0U, begin + 24, 4U, name})
    append(bytes, value);
  std::memcpy(bytes.data() + 32, &begin, sizeof begin);
  LdCache cache = parsed(bytes);
  cache.add_first("libx.so.1", "/ours/libx.so.1", kX86);
  const LdCache again = parsed(cache.serialize());
  REQUIRE(again.entries().size() == 3);
  CHECK(again.entries()[0].path == "/ours/libx.so.1");
  CHECK(again.hwcap_of(again.entries()[0]).empty());
  CHECK(again.hwcap_of(again.entries()[1]) == "x86-64-v3");
  CHECK(again.hwcap_of(again.entries()[2]).empty());
}

TEST_CASE("ld_cache_with_gigabytes_of_names_is_refused") {
  // A hundred thousand entries that share one string of 4,000 characters.
  std::string entries, text(4000, 'a');
  constexpr std::uint32_t kCount = 100000;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    append(entries, kX86);
    append(entries, 48 + kCount * 24);
    append(entries, 48 + kCount * 24);
    append(entries, 0U);
    append(entries, std::uint64_t{0});
  }
  std::string file = "glibc-ld.so.cache1.1";
  append(file, kCount);
  append(file, 4001U);
  file.resize(48);
  CHECK(!LdCache::parse(file + entries + text + '\0'));
}

TEST_CASE("ld_cache_fifo_or_huge_file_is_refused_without_waiting") {
  char directory[] = "/tmp/spc-cache-XXXXXX";
  REQUIRE(::mkdtemp(directory) != nullptr);
  const std::string fifo = std::string(directory) + "/fifo";
  const std::string huge = std::string(directory) + "/huge";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const UniqueFd opened(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  CHECK(!LdCache::read(opened.get()));
  const UniqueFd large(::open(huge.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(::ftruncate(large.get(), off_t{4} << 30) == 0);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(!LdCache::read(large.get()));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
  ::unlink(fifo.c_str());
  ::unlink(huge.c_str());
  ::rmdir(directory);
}

TEST_CASE("ld_cache_damage_is_read_and_written_safely") {
  LdCache with_extensions = parsed(cache_of(kRows));
  const std::string whole = old_cache_of(kRows);
  std::mt19937 random(1);
  int readable = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = round % 2 == 0 ? whole : with_extensions.serialize();
    for (int i = 0; i < 2; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto cache = LdCache::parse(bytes);
    if (!cache) continue;
    ++readable;
    REQUIRE(LdCache::parse(cache->serialize()));
  }
  CHECK(readable > 100);
}

TEST_CASE("ld_cache_of_this_machine_is_preserved") {
  const UniqueFd file(::open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC));
  if (!file) return;
  const auto cache = LdCache::read(file.get());
  REQUIRE(cache);
  REQUIRE(cache->entries().size() > 10);
  const LdCache again = parsed(cache->serialize());
  CHECK(again.glibc_hwcaps() == cache->glibc_hwcaps());
  REQUIRE(again.entries().size() == cache->entries().size());
  for (std::size_t i = 0; i < again.entries().size(); ++i) {
    CHECK(again.entries()[i].soname == cache->entries()[i].soname);
    CHECK(again.entries()[i].path == cache->entries()[i].path);
    CHECK(again.entries()[i].hwcap == cache->entries()[i].hwcap);
  }
}

TEST_CASE("ld_cache_large_is_rewritten_within_a_millisecond", "[.]") {
  for (const int count : {1000, 5000}) {
    std::vector<Row> rows;
    for (int i = 0; i < count; ++i) {
      const std::string soname =
          "libsomething-" + std::to_string(i) + ".so." + std::to_string(i % 7);
      rows.push_back({soname, "/usr/lib/x86_64-linux-gnu/" + soname});
    }
    const LdCache unsorted = parsed(cache_of(rows));
    const std::string bytes = unsorted.serialize();
    double best = 1e9;
    for (int round = 0; round < 50; ++round) {
      std::string copy = bytes;
      const auto begin = std::chrono::steady_clock::now();
      auto cache = LdCache::parse(std::move(copy));
      for (int i = 0; i < 40; ++i)
        cache->add_first("libsomething-" + std::to_string(i) + ".so.1", "/ours/lib.so.1", kX86);
      const std::string written = cache->serialize();
      best = std::min(
          best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                    .count());
      REQUIRE(written.size() > bytes.size());
    }
    WARN(count << " entries, " << bytes.size() << " bytes: " << best << " us");
  }
}

}  // namespace
}  // namespace spc
