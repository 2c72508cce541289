// EROFS images that the writer does not make, each refused for a different reason.

#include <sys/stat.h>

#include <algorithm>
#include <array>

#include "unit/catch2_compat.hpp"
#include "unit/has.hpp"
#include "unit/image/samples/erofs_image.hpp"
#include "unit/image/samples/layer_tar.hpp"
#include "unit/image/samples/verify_parts.hpp"

using namespace spc;
using namespace spc::test;

namespace {

constexpr std::size_t kSuper = 1024;

const ErofsImage& all() {
  static const ErofsImage image = erofs_sample().image();
  return image;
}

/// Returns the refusal of the sample with one change.
template <typename Change>
std::string with_change(Change change) {
  ErofsImage image = all();
  change(image);
  return refusal(image.seal().bytes);
}

template <typename Number>
std::string with_number(std::size_t at, Number number) {
  return with_change([&](ErofsImage& image) { image.set(at, number); });
}

template <typename Number>
std::string in_inode(std::string_view path, std::size_t field, Number number) {
  return with_number(all().inodes.find(path)->second + field, number);
}

template <typename Number>
std::string behind(std::string_view path, std::size_t at, Number number) {
  return with_number(all().behind.find(path)->second + at, number);
}

template <typename Number>
std::string in_entry(std::string_view path, std::size_t field, Number number) {
  return with_number(all().entries.find(path)->second + field, number);
}

template <typename Number>
Number number_of(std::string_view path, std::size_t field) {
  return get<Number>(all().bytes, all().inodes.find(path)->second + field);
}

/// Returns the end of the record.
std::size_t end_of(const ErofsImage& image, std::string_view path) {
  const std::size_t begin = image.inodes.find(path)->second;
  return std::find_if(image.tables.begin(), image.tables.end(),
                      [&](const auto& table) { return table.first == begin; })
      ->second;
}

/// Returns the refusal of an image whose tree has one more node.
template <typename Add>
std::string with_more(Add add) {
  ErofsTree tree = erofs_sample(false);
  add(tree);
  return refusal(tree.image().bytes);
}

}  // namespace

TEST_CASE("verify_erofs_super_block_fields_are_checked") {
  CHECK(has(with_number(0, std::uint8_t{1}), "super block: data in front of it"));
  CHECK(has(with_number(1023, std::uint8_t{1}), "super block: data in front of it"));
  CHECK(has(with_number(kSuper, std::uint32_t{0xE0F5E1E1}), "not a squashfs image"));
  CHECK(has(with_number(kSuper + 8, std::uint32_t{1}), "unexpected compatible features"));
  CHECK(has(with_number(kSuper + 8, std::uint32_t{7}), "unexpected compatible features"));
  CHECK(has(with_number(kSuper + 12, std::uint8_t{9}), "the block size is not 4 KiB"));
  CHECK(has(with_number(kSuper + 13, std::uint8_t{1}), "longer than 128 bytes"));
  CHECK(has(with_number(kSuper + 14, std::uint16_t{41}), "unexpected place of the root"));
  CHECK(has(with_number(kSuper + 16, std::uint64_t{all().inodes.size() + 1}),
            "wrong number of inodes"));
  CHECK(has(with_number(kSuper + 16, std::uint64_t{all().inodes.size() - 1}),
            "wrong number of inodes"));
  CHECK(has(with_number(kSuper + 24, std::uint64_t{1}), "unexpected date"));
  CHECK(has(with_number(kSuper + 32, std::uint32_t{1}), "unexpected date"));
  for (const int more : {-1, 1}) {
    const auto blocks =
        static_cast<std::uint32_t>(all().bytes.size() / 4096) + static_cast<std::uint32_t>(more);
    CHECK(has(with_number(kSuper + 36, blocks), "wrong file size"));
  }
  CHECK(has(with_number(kSuper + 40, std::uint32_t{1}), "unexpected place of inodes"));
  CHECK(has(with_number(kSuper + 44, std::uint32_t{1}), "unexpected place of inodes"));
  CHECK(has(with_number(kSuper + 48, std::uint8_t{1}), "unexpected label"));
  CHECK(has(with_number(kSuper + 79, std::uint8_t{1}), "unexpected label"));
  for (const auto features :
       std::to_array<std::uint32_t>({0U, 1U, 2U, 3U, 5U, 6U, 15U, 0x80000007U})) {
    CHECK(has(with_number(kSuper + 80, features), "unexpected features"));
  }
  CHECK(has(with_number(kSuper + 80, std::uint32_t{4}), "unexpected algorithms"));
  for (const auto algorithms : std::to_array<std::uint16_t>({0, 2, 3})) {
    CHECK(has(with_number(kSuper + 84, algorithms), "unexpected algorithms"));
  }
  for (std::size_t at = 86; at < 128; ++at) {
    CHECK(has(with_number(kSuper + at, std::uint8_t{1}), "unexpected values at its end"));
  }
}

TEST_CASE("verify_erofs_lz4_settings_are_checked") {
  for (std::size_t at = 128; at < 144; ++at) {
    const auto byte = static_cast<std::uint8_t>(all().bytes[kSuper + at] + 1);
    CHECK(has(with_number(kSuper + at, byte), "unexpected settings of lz4"));
  }
  for (const auto at : std::to_array<std::size_t>({144, 200, 255})) {
    CHECK(has(with_number(kSuper + at, std::uint8_t{1}),
              "data between the super block and the root"));
  }
  ErofsTree tree;
  tree.file("a", "b");
  auto image = tree.image({.is_compressed = false});
  CHECK(has(refusal(ErofsImage(image).set(kSuper + 84, std::uint16_t{1}).seal().bytes),
            "unexpected algorithms"));
  CHECK(has(refusal(image.set(kSuper + 128, std::uint16_t{14}).seal().bytes),
            "unexpected settings of lz4"));
  CHECK(has(
      with_number(all().behind.find("")->second + number_of<std::uint64_t>("", 8), std::uint8_t{1}),
      "data behind the root in block 0"));
  CHECK(has(with_number(4095, std::uint8_t{1}), "data behind the root in block 0"));
}

TEST_CASE("verify_erofs_wrong_checksum_is_refused") {
  for (const auto at : std::to_array<std::size_t>({1028, 1031, 1024 + 16, 1280 + 33, 4000})) {
    auto bytes = all().bytes;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    CHECK(has(refusal(bytes), "super block: wrong checksum"));
  }
}

TEST_CASE("verify_erofs_wrong_size_is_refused") {
  for (const auto size : std::to_array<std::size_t>({1152, 4095, 4096, 8191})) {
    CHECK(has(refusal(all().bytes.substr(0, size)), "super block: the file is too short"));
  }
  CHECK(has(refusal(all().bytes + "x"), "super block: wrong file size"));
  CHECK(has(refusal(all().bytes + std::string(4096, '\0')), "super block: wrong file size"));
  CHECK(has(refusal(all().bytes.substr(0, all().bytes.size() - 4096)),
            "super block: wrong file size"));
}

TEST_CASE("verify_erofs_inode_fields_are_checked") {
  for (const char* path : {"", "d", "d/a", "d/h", "packed", "holes", "link", "long", "gone", "fifo",
                           "empty", "large"}) {
    CAPTURE(path);
    const auto format = number_of<std::uint16_t>(path, 0);
    CHECK(has(in_inode(path, 0, static_cast<std::uint16_t>(format & ~1)), "short form"));
    CHECK(has(in_inode(path, 0, static_cast<std::uint16_t>(format | 0x10)), "unknown layout"));
    for (const auto layout : std::to_array<std::uint16_t>({3, 5, 6, 7, 0x4001})) {
      CHECK(has(in_inode(path, 0, static_cast<std::uint16_t>(layout << 1 | 1)), "unknown layout"));
    }
    const auto mode = number_of<std::uint16_t>(path, 4);
    CHECK(has(in_inode(path, 4, static_cast<std::uint16_t>(mode | 04000)),
              "mode bits other than permissions"));
    CHECK(has(in_inode(path, 4, static_cast<std::uint16_t>(mode | 02000)),
              "mode bits other than permissions"));
    CHECK(has(in_inode(path, 24, std::uint32_t{1}), "its owner is not 0"));
    CHECK(has(in_inode(path, 28, std::uint32_t{1000}), "its owner is not 0"));
    CHECK(has(in_inode(path, 36, std::uint8_t{1}), "unexpected date"));
    CHECK(has(in_inode(path, 40, std::uint32_t{1}), "unexpected date"));
    for (const auto at : std::to_array<std::size_t>({6, 7, 20, 23, 48, 55, 63})) {
      CHECK(has(in_inode(path, at, std::uint8_t{1}), "unused field"));
    }
    const auto links = number_of<std::uint32_t>(path, 44);
    CHECK(has(in_inode(path, 44, links + 1), "wrong link count"));
    CHECK(has(in_inode(path, 44, links - 1), "wrong link count"));
  }
}

TEST_CASE("verify_erofs_inode_type_matches_entries") {
  constexpr std::uint16_t kTypes[] = {S_IFREG, S_IFDIR,  S_IFCHR, S_IFBLK,
                                      S_IFIFO, S_IFSOCK, S_IFLNK, 0};
  for (const char* path : {"", "d", "d/a", "link", "gone", "fifo"}) {
    const auto mode = number_of<std::uint16_t>(path, 4);
    for (const auto type : kTypes) {
      const auto other = static_cast<std::uint16_t>((mode & 07777) | type);
      if (other != mode)
        CHECK(has(in_inode(path, 4, other), "an entry names it as something else"));
    }
  }
  for (const auto type : std::to_array<std::uint8_t>({0, 4, 6, 8, 255}))
    CHECK(has(in_entry("d/a", 10, type), "an entry of an unused type"));
  CHECK(has(in_entry("d/a", 10, std::uint8_t{7}), "an entry names it as something else"));
  CHECK(has(in_entry("d/a", 10, std::uint8_t{2}), "inode"));
  CHECK(has(in_entry("void", 10, std::uint8_t{1}), "wrong link count"));
  CHECK(has(in_entry("d/h", 10, std::uint8_t{3}), "entries name it as different things"));
  CHECK(has(in_entry("d/a", 11, std::uint8_t{1}), "unused field of an entry"));
}

TEST_CASE("verify_erofs_devices_and_fifos_have_no_content") {
  CHECK(has(in_inode("gone", 16, std::uint32_t{0x501}), "a device other than a whiteout"));
  CHECK(has(in_inode("gone", 8, std::uint64_t{1}), "a device other than a whiteout"));
  CHECK(has(in_inode("gone", 0, std::uint16_t{5}), "a device other than a whiteout"));
  CHECK(has(in_inode("fifo", 16, std::uint32_t{1}), "a FIFO with content"));
  CHECK(has(in_inode("fifo", 8, std::uint64_t{1}), "a FIFO with content"));
  CHECK(has(in_inode("fifo", 0, std::uint16_t{9}), "a FIFO with content"));
  CHECK(has(with_more([](ErofsTree& tree) { tree.fifo("p").with("a", "b"); }),
            "unexpected for its type"));
  CHECK(has(with_more([](ErofsTree& tree) { tree.whiteout("p").with("a", "b"); }),
            "unexpected for its type"));
}

TEST_CASE("verify_erofs_crossing_or_overlapping_records_are_refused") {
  const auto moved = [](const char* path, std::size_t to) {
    return with_change([&](ErofsImage& image) {
      const auto begin = image.bytes.size();
      const auto size = end_of(image, path) - image.inodes[path];
      image.bytes.append(12'288, '\0')
          .replace(begin + to, size, image.bytes, image.inodes[path], size);
      image.set(kSuper + 36, static_cast<std::uint32_t>(image.bytes.size() / 4096));
      image.set(image.entries[path], std::uint64_t{(begin + to) / 32});
    });
  };
  CHECK(moved("d/a", 0).empty());
  CHECK(moved("d/a", 64).empty());
  CHECK(has(moved("d/a", 4096 - 32), "it crosses the end of a block"));
  CHECK(has(moved("d/a", 4096 - 64), "it crosses the end of a block"));
  CHECK(moved("d/index", 0).empty());
  CHECK(has(moved("d/index", 32), "longer than a block and does not begin with one"));
  CHECK(has(with_change([](ErofsImage& image) {
              // The record of one file overlaps another file's content.
              const auto place = image.inodes["d/full"];
              image.bytes.replace(place + 64, 64, image.bytes, image.inodes["d/a"], 64);
              image.set(place + 64, std::uint16_t{1}).set(place + 64 + 8, std::uint64_t{0});
              image.set(image.entries["d/a"], std::uint64_t{place / 32 + 2});
            }),
            "two inodes overlap"));
  CHECK(has(with_change([](ErofsImage& image) {
              // The same, in a directory's entries.
              const auto place = image.behind["many"];
              image.bytes.replace(place, 64, image.bytes, image.inodes["empty"], 64);
              image.set(image.entries["d/a"], std::uint64_t{place / 32});
            }),
            "wrong"));
  CHECK(has(with_change([](ErofsImage& image) {
              const auto place =
                  std::size_t{get<std::uint32_t>(image.bytes, image.inodes["d/h"] + 16)} * 4096;
              image.bytes.replace(place, 256, image.bytes, image.inodes["d/a"], 256);
              image.set(image.entries["d/a"], std::uint64_t{place / 32});
            }),
            "data overlaps an inode"));
}

TEST_CASE("verify_erofs_attributes_are_limited_to_user") {
  const auto one = [](std::string name, std::string value, std::uint8_t prefix = 1) {
    return with_more([&](ErofsTree& tree) { tree.file("x", "y").with(name, value, prefix); });
  };
  const auto two = [](const ErofsNode::Attribute& first, const ErofsNode::Attribute& second) {
    return with_more([&](ErofsTree& tree) { tree.directory("x").attributes = {first, second}; });
  };
  CHECK(one("name", "value").empty());
  CHECK(one(std::string(250, 'n'), "value").empty());
  CHECK(one("overlay", "value").empty());
  CHECK(has(one("", ""), "wrong length of a name"));
  CHECK(has(one(std::string(251, 'n'), ""), "wrong length of a name"));
  CHECK(has(one(std::string("a\0b", 3), ""), "a name contains NUL"));
  for (const auto prefix : std::to_array<std::uint8_t>({0, 2, 3, 5, 6, 7, 0x81, 0x84})) {
    CHECK(has(one("name", "value", prefix), "neither user.* nor overlayfs's mark"));
  }
  for (const char* name : {"overlay.", "overlay.redirect", "overlay.opaqueness"}) {
    CHECK(has(one(name, "y"), "neither user.* nor overlayfs's mark"));
  }
  CHECK(has(one("name", "value", 4), "neither user.* nor overlayfs's mark"));
  CHECK(has(one("overlay.opaque", "y", 4), "mark on a non-directory"));
  CHECK(two({4, "overlay.opaque", "y"}, {1, "overlay.opaque", "y"}).empty());
  CHECK(has(two({4, "overlay.opaque", "y"}, {1, "overlay.opaque", "x"}),
            "wrong value of an overlayfs mark"));
  CHECK(has(two({4, "overlay.opaque", "yy"}, {1, "overlay.opaque", "y"}),
            "wrong value of an overlayfs mark"));
  CHECK(has(two({4, "overlay.opaque", "y"}, {1, "other", "y"}), "one half of overlayfs's mark"));
  CHECK(has(two({1, "overlay.opaque", "y"}, {1, "other", "y"}), "one half of overlayfs's mark"));
  CHECK(has(two({4, "overlay.opaque", "y"}, {4, "overlay.opaque", "y"}), "a name comes twice"));
  CHECK(has(two({1, "overlay.opaque", "y"}, {1, "overlay.opaque", "y"}), "a name comes twice"));
  CHECK(has(two({1, "a", "1"}, {1, "a", "2"}), "a name comes twice"));
}

TEST_CASE("verify_erofs_attribute_list_form_is_checked") {
  const std::size_t list = all().inodes.find("note")->second + 64;
  for (std::size_t at = 0; at < 12; ++at)
    CHECK(has(with_number(list + at, std::uint8_t{1}), "unexpected header"));
  CHECK(has(in_inode("note", 2, std::uint16_t{1}), "attributes: empty list"));
  CHECK(has(with_number(list + 12, std::uint8_t{200}), "the last one is cut off"));
  CHECK(has(with_number(list + 14, std::uint16_t{65535}), "the last one is cut off"));
  CHECK(has(with_number(list + 12 + 4 + 9, std::uint8_t{1}), "data between two of them"));
  const auto words = number_of<std::uint16_t>("note", 2);
  CHECK(has(in_inode("note", 2, static_cast<std::uint16_t>(words - 1)), "the last one is cut off"));
  CHECK(has(in_inode("note", 2, std::uint16_t{65535}), "unexpected layout"));
}
