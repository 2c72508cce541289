// Layers that reach internal limits of the format: several metadata blocks, several groups,
// indexes, shared values. convert() has passed all of them to the verifier.

#include <algorithm>

#include "unit/catch2_compat.hpp"
#include "unit/image/samples/verify_parts.hpp"
#include "unit/image/samples/verify_sample.hpp"

using namespace spc;
using namespace spc::test;

namespace {

std::string numbered(std::string_view prefix, unsigned number) {
  return std::string(prefix) + std::to_string(number);
}

}  // namespace

TEST_CASE("verify_squashfs_directories_around_short_form_pass") {
  // The last name sweeps the listing's size around 65535 bytes.
  std::size_t smallest = std::string::npos;
  std::size_t largest = 0;
  for (unsigned rest = 35; rest <= 70; ++rest) {
    Tar tar;
    for (unsigned i = 0; i < 256; ++i)
      tar.pax(record("path", "d/" + numbered("", 1000 + i) + std::string(243, 'n'))).file("", "");
    tar.pax(record("path", "d/" + std::string(rest, 'x'))).file("", "");
    CAPTURE(rest);
    const auto image = converted(tar);
    const std::size_t inodes =
        get<std::uint64_t>(image, kDirectoryTable) - get<std::uint64_t>(image, kInodeTable);
    smallest = std::min(smallest, inodes);
    largest = std::max(largest, inodes);
  }
  CHECK(largest > smallest + 50);  // both forms occurred: the long one has an index
}

TEST_CASE("verify_squashfs_large_indexed_directory_is_accepted") {
  Tar tar;
  tar.pax(record("SCHILY.xattr.user.note", "of a directory")).directory("d/");
  for (unsigned i = 0; i < 3000; ++i) tar.file(numbered("d/entry-", i * 7919 % 3001), "");
  CHECK_FALSE(converted(tar).empty());
}

TEST_CASE("verify_squashfs_hard_links_to_distant_inodes_pass") {
  Tar tar;
  for (unsigned i = 0; i < 33'000; ++i) tar.file(numbered("a/", i), "");
  tar.hard_link("z/far", "a/1")
      .file("z/near", "")
      .hard_link("z/other", "a/32999")
      .hard_link("b", "a/500");
  CHECK_FALSE(converted(tar).empty());
}

TEST_CASE("verify_squashfs_shared_attribute_values_are_accepted") {
  Tar tar;
  const std::string shared(3000, 's');
  for (unsigned i = 0; i < 1200; ++i) {
    std::string records = record("SCHILY.xattr.user.number", std::to_string(i)) +
                          record("SCHILY.xattr.user.shared", shared);
    if (i % 3 == 0)
      records = record(numbered("SCHILY.xattr.user.name-", i), std::string(i * 40, 'v')) + records;
    tar.pax(records).file(numbered("f", i));
  }
  CHECK_FALSE(converted(tar).empty());
}

TEST_CASE("verify_squashfs_many_fragments_are_accepted") {
  Tar tar;
  const std::string half(65'600, 'x');
  for (unsigned i = 0; i < 520; ++i) tar.file(numbered("f", i), half);
  CHECK_FALSE(converted(tar).empty());
}

TEST_CASE("verify_squashfs_deepest_paths_are_accepted") {
  std::string path;
  for (unsigned i = 0; i < 2046; ++i) path += "d/";
  CHECK_FALSE(converted(Tar().pax(record("path", path + "f")).file("")).empty());
  CHECK_FALSE(
      converted(Tar().pax(record("linkpath", std::string(4095, 'x'))).symlink("l", "")).empty());
}

TEST_CASE("verify_squashfs_gaps_of_replaced_files_are_accepted") {
  CHECK_FALSE(converted(Tar()
                            .file("f", noise(200'000))
                            .file("f", "small")
                            .file("g", noise(150'000))
                            .directory("g/")
                            .file("h"))
                  .empty());
  CHECK_FALSE(
      converted(
          Tar().file("f", noise(100'000)).file("f", "").hard_link("g", "f").file("f", "again"))
          .empty());
}
