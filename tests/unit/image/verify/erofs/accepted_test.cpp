// EROFS images in the writer's form, and the variations that it allows.

#include <array>

#include "unit/catch2_compat.hpp"
#include "unit/image/samples/erofs_image.hpp"
#include "unit/image/samples/layer_tar.hpp"
#include "unit/image/samples/verify_parts.hpp"

using namespace spc;
using namespace spc::test;

namespace {

/// Returns a tree whose directory has this number of bytes in entries, besides `.` and `..`, and no
/// attributes.
ErofsTree with_directory_of(std::size_t size) {
  ErofsTree tree;
  tree.directory("d");
  tree.file("f", "");
  tree.at("f").stored = Stored::plain;
  for (unsigned i = 0; size > 0; ++i) {
    const std::size_t name = size > 500 ? 200 : size > 12 + 255 ? 100 : size - 12;
    std::string text = std::to_string(10 + i);
    text.resize(name, 'x');
    tree.hard_link("d/" + text, "f");
    size -= name + 12;
  }
  return tree;
}

}  // namespace

TEST_CASE("verify_erofs_sample_of_everything_is_accepted") {
  CHECK(refusal(erofs_sample().image().bytes).empty());
  CHECK(refusal(erofs_sample(false).image().bytes).empty());
}

TEST_CASE("verify_erofs_without_compression_needs_no_settings") {
  ErofsTree tree;
  tree.file("a", "b");
  CHECK(refusal(tree.image({.is_compressed = false}).bytes).empty());
}

TEST_CASE("verify_erofs_empty_directory_is_accepted") {
  ErofsTree tree;
  auto image = tree.image();
  image.bytes.resize(8192);
  image.set(1024 + 36, std::uint32_t{2}).seal();
  CHECK(refusal(image.bytes).empty());
}

TEST_CASE("verify_erofs_directories_around_block_size_are_accepted") {
  // `.` and `..` take 27 bytes.
  for (const auto size :
       std::to_array<std::size_t>({4096 - 64 - 27 - 1, 4096 - 64 - 27, 4096 - 64 - 27 + 1,
                                   4096 - 27, 4096 - 27 + 1, 8192 - 27, 100'000})) {
    CAPTURE(size);
    CHECK(refusal(with_directory_of(size).image().bytes).empty());
  }
}

TEST_CASE("verify_erofs_large_root_is_accepted") {
  ErofsTree tree;
  for (unsigned i = 0; i < 500; ++i) tree.directory("directory-" + std::to_string(i));
  CHECK(refusal(tree.image().bytes).empty());
}

TEST_CASE("verify_erofs_files_around_unit_size_are_accepted") {
  for (const auto size :
       std::to_array<std::size_t>({4097, 8191, 8192, 8193, 131071, 131072, 131073, 131072 + 4096,
                                   131072 + 4097, 262144, 300'000})) {
    for (const auto stored : {Stored::plain, Stored::compressed}) {
      ErofsTree tree;
      tree.file("f", std::string(size, 'x'), stored);
      CAPTURE(size);
      CHECK(refusal(tree.image().bytes).empty());
    }
  }
}

TEST_CASE("verify_erofs_attribute_sizes_before_index_are_accepted") {
  for (unsigned size = 0; size < 20; ++size) {
    ErofsTree tree;
    tree.file("f", std::string(10'000, 'x'), Stored::compressed).with("n", std::string(size, 'v'));
    tree.file("h", std::string(200'000, '\0'), Stored::chunks).with("n", std::string(size, 'v'));
    tree.symlink("l", "t").with("n", std::string(size, 'v'));
    tree.directory("d").with("n", std::string(size, 'v'));
    CHECK(refusal(tree.image().bytes).empty());
  }
}

TEST_CASE("verify_erofs_permissions_and_times_are_free") {
  auto image = erofs_sample(false).image();
  for (const auto& [path, inode] : image.inodes) {
    const auto mode = get<std::uint16_t>(image.bytes, inode + 4);
    image.set(inode + 4, static_cast<std::uint16_t>(mode ^ 01777));
    image.set(inode + 32, std::uint64_t{0xffffffff});
  }
  image.bytes += noise(8192);
  image.set(1024 + 36, static_cast<std::uint32_t>(image.bytes.size() / 4096)).seal();
  CHECK(refusal(image.bytes).empty());
}

TEST_CASE("verify_erofs_with_squashfs_magic_is_refused") {
  auto image = erofs_sample(false).image();
  image.bytes.replace(0, 4, "hsqs");
  CHECK(refusal(image.bytes).starts_with("super block: the version is not 4.0"));
}

TEST_CASE("verify_erofs_depth_is_limited_to_paths") {
  for (const unsigned depth : {2048U, 2049U}) {
    ErofsTree tree;
    ErofsNode* last = &tree.directory("d");
    for (unsigned i = 1; i < depth; ++i) {
      auto& entry = last->entries["d"];
      entry = std::make_shared<ErofsNode>(*last);
      entry->entries.clear();
      last = entry.get();
    }
    const auto refused = refusal(tree.image().bytes);
    CHECK((depth == 2048 ? refused.empty()
                         : refused.ends_with("the directories are nested too deeply")));
  }
}

TEST_CASE("verify_erofs_large_directory_is_accepted") {
  ErofsTree tree;
  for (unsigned i = 0; i < 50'000; ++i) tree.file("file-" + std::to_string(i), "x");
  CHECK(refusal(tree.image().bytes).empty());
}
