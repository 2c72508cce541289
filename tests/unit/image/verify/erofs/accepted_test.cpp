// EROFS images of the form that our writer has, and what of them it leaves open.

#include <array>

#include "unit/image/samples/erofs_image.hpp"
#include "unit/image/samples/layer_tar.hpp"
#include "unit/image/samples/verify_parts.hpp"
#include "unit/test.hpp"

using namespace spc;
using namespace spc::test;

namespace {

/// Without attributes a directory of this many bytes in entries besides `.` and `..`.
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

TEST_CASE("an EROFS image with something of everything is accepted") {
  CHECK(refusal(erofs_sample().image().bytes).empty());
  CHECK(refusal(erofs_sample(false).image().bytes).empty());
}

TEST_CASE("an EROFS image without compressed files needs no settings for them") {
  ErofsTree tree;
  tree.file("a", "b");
  CHECK(refusal(tree.image({.is_compressed = false}).bytes).empty());
}

TEST_CASE("an EROFS image of one empty directory is accepted, with a block that is unused") {
  ErofsTree tree;
  auto image = tree.image();
  image.bytes.resize(8192);
  image.set(1024 + 36, std::uint32_t{2}).seal();
  CHECK(refusal(image.bytes).empty());
}

TEST_CASE("directories on both sides of an inode's block, and of several blocks, are accepted") {
  // 27 bytes are `.` and `..`.
  for (const auto size :
       std::to_array<std::size_t>({4096 - 64 - 27 - 1, 4096 - 64 - 27, 4096 - 64 - 27 + 1,
                                   4096 - 27, 4096 - 27 + 1, 8192 - 27, 100'000})) {
    CAPTURE(size);
    CHECK(refusal(with_directory_of(size).image().bytes).empty());
  }
}

TEST_CASE("a root of several blocks is accepted") {
  ErofsTree tree;
  for (unsigned i = 0; i < 500; ++i) tree.directory("directory-" + std::to_string(i));
  CHECK(refusal(tree.image().bytes).empty());
}

TEST_CASE("files of every size around units and blocks are accepted") {
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

TEST_CASE("attributes of all sizes in front of an index are accepted") {
  for (unsigned size = 0; size < 20; ++size) {
    ErofsTree tree;
    tree.file("f", std::string(10'000, 'x'), Stored::compressed).with("n", std::string(size, 'v'));
    tree.file("h", std::string(200'000, '\0'), Stored::chunks).with("n", std::string(size, 'v'));
    tree.symlink("l", "t").with("n", std::string(size, 'v'));
    tree.directory("d").with("n", std::string(size, 'v'));
    CHECK(refusal(tree.image().bytes).empty());
  }
}

TEST_CASE("permissions, dates and what belongs to nothing are open") {
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

TEST_CASE("what begins with squashfs's magic is no EROFS image") {
  auto image = erofs_sample(false).image();
  image.bytes.replace(0, 4, "hsqs");
  CHECK(refusal(image.bytes).starts_with("super block: the version is not 4.0"));
}

TEST_CASE("directories are as deep as paths can be, and no deeper") {
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

TEST_CASE("a directory of very many names is accepted") {
  ErofsTree tree;
  for (unsigned i = 0; i < 50'000; ++i) tree.file("file-" + std::to_string(i), "x");
  CHECK(refusal(tree.image().bytes).empty());
}
