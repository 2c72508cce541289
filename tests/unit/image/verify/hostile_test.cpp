// Malicious images, each refused for a different reason.

#include <zstd.h>

#include <array>

#include "unit/has.hpp"
#include "unit/image/samples/verify_parts.hpp"
#include "unit/image/samples/verify_sample.hpp"

using namespace spc;
using namespace spc::test;

namespace {

const std::string& sample() {
  static const std::string image = sample_image();
  return image;
}

/// Returns the sample with one change.
template <typename Change>
std::string with(Change change) {
  Parts parts(sample());
  change(parts);
  return refusal(parts.image());
}

/// Returns the sample with one number of an inode changed.
template <typename Number>
std::string with_inode(std::string_view name, std::size_t field, Number number) {
  return with([&](Parts& parts) { put(parts.inodes, parts.inode_offset(name) + field, number); });
}

template <typename Number>
std::string with_super(SuperField field, Number number) {
  auto image = sample();
  put(image, field, number);
  return refusal(image);
}

}  // namespace

TEST_CASE("verify_squashfs_unused_types_are_refused") {
  constexpr std::string_view kWhy = "unused type";
  for (const auto type : std::to_array<std::uint16_t>({4, 7, 10, 11, 12, 13, 14, 15, 0, 65535})) {
    CAPTURE(type);
    CHECK(has(with_inode("gone", 0, type), std::string(kWhy)));
    CHECK(has(with_inode("fifo", 0, type), std::string(kWhy)));
  }
  CHECK(has(with_inode("gone", 20, std::uint32_t{0x501}), "a device other than a whiteout"));
  CHECK(has(with_inode("gone", 2, std::uint16_t{0666}), "a device other than a whiteout"));
}

TEST_CASE("verify_squashfs_special_mode_bits_are_refused") {
  for (const char* name : {"", "d", "a", "link", "fifo", "note"}) {
    for (const auto bits : std::to_array<std::uint16_t>({04755, 02755, 0020666, 0100644})) {
      CHECK(has(with_inode(name, 2, bits), "mode bits other than permissions"));
    }
  }
}

TEST_CASE("verify_squashfs_other_owners_are_refused") {
  CHECK(has(with_inode("note", 4, std::uint16_t{1}), "its owner is not 0"));
  CHECK(has(with_inode("note", 6, std::uint16_t{1}), "its owner is not 0"));
  CHECK(has(with([](Parts& parts) { put(parts.owners, 0, std::uint32_t{1000}); }),
            "an owner other than 0"));
  CHECK(has(with_super(kOwners, std::uint16_t{2}), "an owner other than 0"));
  CHECK(has(with_super(kOwners, std::uint16_t{3}), "expected one owner, or two"));
}

TEST_CASE("verify_squashfs_super_block_is_checked") {
  CHECK(has(with_super(kCompressor, std::uint16_t{1}), "neither zstd nor lz4"));
  CHECK(has(with_super(kMajor, std::uint16_t{3}), "version"));
  CHECK(has(with_super(kMinor, std::uint16_t{1}), "version"));
  CHECK(has(with_super(kBlockSize, std::uint32_t{1} << 20U), "block size"));
  CHECK(has(with_super(kBlockLog, std::uint16_t{31}), "block size"));
  CHECK(has(with_super(kExportTable, std::uint64_t{96}), "export table"));
  for (const auto field :
       {kUsed, kOwnerTable, kAttributeTable, kInodeTable, kDirectoryTable, kFragmentTable}) {
    for (const std::uint64_t place :
         {std::uint64_t{0}, std::uint64_t{96}, sample().size() + 0, sample().size() - 1,
          std::uint64_t{1} << 40U, std::uint64_t{1} << 63U, ~std::uint64_t{0} - 7,
          ~std::uint64_t{0}}) {
      CAPTURE(field);
      CAPTURE(place);
      CHECK_FALSE(with_super(field, place).empty());
    }
  }
  for (const std::uint64_t root : {std::uint64_t{0}, std::uint64_t{1} << 40U, ~std::uint64_t{0}}) {
    CHECK(has(with_super(kRoot, root), "the root is not the last inode"));
  }
}

TEST_CASE("verify_squashfs_huge_counts_are_refused_without_memory") {
  constexpr std::uint32_t kHuge = 0xffffffff;
  CHECK(has(with_super(kInodes, kHuge), "fewer inodes than stated"));
  CHECK(has(with_super(kInodes, get<std::uint32_t>(sample(), kInodes) + 1), "truncated table"));
  CHECK(has(with_super(kInodes, get<std::uint32_t>(sample(), kInodes) - 1),
            "trailing data after the last entry"));
  CHECK(has(with_super(kFragments, kHuge), "wrong position of fragments"));
  CHECK(has(with([](Parts& parts) { parts.set_count = kHuge; }), "wrong attributes header"));
  CHECK(has(with([](Parts& parts) { put(parts.directories, 0, kHuge); }), "too many entries"));
  CHECK(has(with_inode("link", 20, kHuge), "target has a wrong length"));
  CHECK(has(with_inode("big", 24, std::uint64_t{1} << 63U), "wrong block size for its file"));
  CHECK(has(with_inode("holes", 24, ~std::uint64_t{0}), "wrong block size for its file"));
  CHECK(has(with_inode("hide", 20, kHuge), "names of a directory not sorted"));
}

TEST_CASE("verify_squashfs_directory_loops_are_refused") {
  const auto point = [](Parts& parts, std::string_view from, std::string_view to) {
    const std::size_t entry = parts.entry_offset(from);
    const std::size_t inode = parts.inode_offset(to);
    const auto number = get<std::uint32_t>(parts.inodes, inode + 12);
    const auto old = get<std::uint32_t>(parts.inodes, parts.inode_offset(from) + 12);
    const auto distance =
        static_cast<std::uint16_t>(get<std::uint16_t>(parts.directories, entry + 2) + number - old);
    put(parts.directories, entry, static_cast<std::uint16_t>(inode));
    put(parts.directories, entry + 2, distance);
  };
  CHECK(has(with([&](Parts& parts) { point(parts, "void", "hide"); }), "another parent"));
  CHECK(has(with([&](Parts& parts) { point(parts, "void", ""); }), "another parent"));
  CHECK(has(with([&](Parts& parts) {
              const Parts before = parts;
              const std::size_t hide = parts.entry_offset("hide");
              const std::size_t empty = parts.entry_offset("void");
              parts.directories.replace(hide, 4, before.directories, empty, 4);
              parts.directories.replace(empty, 4, before.directories, hide, 4);
            }),
            "unexpected order of inodes"));
  CHECK(has(with([&](Parts& parts) {
              point(parts, "void", "");
              put(parts.inodes, parts.inode_offset("") + 28,
                  get<std::uint32_t>(parts.inodes, parts.inode_offset("") + 12));
            }),
            "unexpected order of inodes"));
  CHECK(has(with_inode("void", 28, std::uint32_t{1}), "another parent"));
  CHECK(has(with_inode("", 28, std::uint32_t{1}), "the root has a parent"));
}

TEST_CASE("verify_squashfs_wrong_link_counts_are_refused") {
  CHECK(has(with_inode("d", 20, std::uint32_t{3}), "wrong link count"));
  CHECK(has(with_inode("big", 40, std::uint32_t{3}), "fewer names than stated"));
  CHECK(has(with_inode("big", 40, std::uint32_t{1}), "long form"));
  CHECK(has(with_inode("fifo", 16, std::uint32_t{0}), "no name left"));
  CHECK(has(with_inode("fifo", 16, std::uint32_t{0xffffffff}), "fewer names than stated"));
}

TEST_CASE("verify_squashfs_invalid_names_are_refused") {
  const auto rename = [](std::string_view from, std::string_view to) {
    return with([&](Parts& parts) {
      parts.directories.replace(parts.entry_offset(from) + 8, to.size(), to);
    });
  };
  CHECK(has(rename("empty", "../.."), "invalid name"));
  CHECK(has(rename("big", "b/g"), "invalid name"));
  CHECK(has(rename("big", std::string_view("b\0g", 3)), "invalid name"));
  CHECK(has(rename("big", "zig"), "not sorted"));
  const auto one = [](std::string_view name) {
    Parts parts(converted(Tar().file(std::string(name.size(), 'x'))));
    parts.directories.replace(20, name.size(), name);
    return refusal(parts.image());
  };
  CHECK(one("y").empty());
  for (const std::string_view name : {".", "..", "/"}) CHECK(has(one(name), "invalid name"));
  CHECK(has(with([](Parts& parts) {
              put(parts.directories, parts.entry_offset("big") + 6, std::uint16_t{0xffff});
            }),
            "longer than 255 bytes"));
}

TEST_CASE("verify_squashfs_invalid_link_targets_are_refused") {
  CHECK(has(with_inode("link", 20, std::uint32_t{0}), "target has a wrong length"));
  CHECK(has(with_inode("link", 24, std::uint8_t{0}), "contains NUL"));
  CHECK(has(with_inode("link", 2, std::uint16_t{0644}), "a link with permissions"));
}

TEST_CASE("verify_squashfs_misplaced_data_is_refused") {
  const auto size = static_cast<std::uint32_t>(sample().size());
  CHECK(has(with_inode("big", 16, std::uint64_t{0}), "block out of bounds"));
  CHECK(has(with_inode("big", 16, std::uint64_t{size}), "block out of bounds"));
  CHECK(has(with_inode("big", 16, ~std::uint64_t{0} - 100), "block out of bounds"));
  CHECK(has(with_inode("b", 20, std::uint32_t{7}), "a file in a missing fragment"));
  CHECK(has(with_inode("b", 24, std::uint32_t{0}), "two files share their data"));
  CHECK(has(with_inode("b", 24, std::uint32_t{200'000}), "extends beyond its fragment"));
  CHECK(has(with_inode("empty", 24, std::uint32_t{1}), "an empty file has a position"));
  CHECK(has(with_inode("holes", 32, std::uint64_t{131'073}), "wrong count of holes"));
  CHECK(has(with([](Parts& parts) {
              // Both files have an uncompressed block: "twin" refers to the other's.
              parts =
                  Parts(converted(Tar().file("a", noise(131'072)).file("twin", noise(131'072))));
              put(parts.inodes, parts.inode_offset("twin") + 16,
                  get<std::uint32_t>(parts.inodes, parts.inode_offset("a") + 16));
            }),
            "two files share their data"));
  CHECK(has(with([](Parts& parts) { put(parts.fragments, 8, std::uint32_t{0x2000000}); }),
            "wrong size of a block"));
  CHECK(
      has(with([](Parts& parts) { put(parts.fragments, 0, std::uint64_t{96}); }), "not in order"));
}

TEST_CASE("verify_squashfs_privileged_attributes_are_refused") {
  const auto replace = [](std::string_view from, std::string_view to) {
    return with([&](Parts& parts) {
      const auto at = parts.pairs.find(from);
      REQUIRE(at != std::string::npos);
      parts.pairs.replace(at, to.size(), to);
    });
  };
  const auto pair = [](char name_space, std::string_view name) {
    std::string bytes{name_space, '\0', static_cast<char>(name.size()), '\0'};
    return bytes.append(name);
  };
  const std::string why = "neither user.* nor overlayfs's mark";
  CHECK(has(replace(pair(0, "note"), pair(2, "note")), why));  // security.*
  CHECK(has(replace(pair(0, "note"), pair(3, "note")), why));
  CHECK(has(replace(pair(0, "note"), pair(1, "note")), why));  // trusted.*
  CHECK(has(replace("overlay.opaque", "overlay.origin"), why));
  CHECK(has(replace(pair(0, "overlay.opaque"), pair(0, "overlay.opaqu_")), why));
  CHECK(has(replace(pair(0, "overlay.opaque"), pair(0, "0verlay.opaque")), "in a set of its own"));
  CHECK(has(replace(std::string("\1\0\0\0y", 5), std::string("\1\0\0\0n", 5)), "wrong value"));
  CHECK(has(with([](Parts& parts) {
              const auto mark = get<std::uint32_t>(parts.inodes, parts.inode_offset("hide") + 36);
              put(parts.inodes, parts.inode_offset("note") + 52, mark);
            }),
            "on a non-directory"));
  CHECK(has(with_inode("note", 52, std::uint32_t{77}), "missing or later set"));
}

TEST_CASE("verify_squashfs_foreign_metadata_blocks_are_refused") {
  const auto packed =
      [](const Parts::Pack& pack) {  // the inodes' block: the others are too short to shrink
        return refusal(Parts(sample()).image([&](auto content) {
          return content.size() > 200 ? pack(content) : Parts::pack_block(content);
        }));
      };
  const auto block = [](const std::string& frame) {
    std::string bytes(2, '\0');
    put(bytes, 0, static_cast<std::uint16_t>(frame.size()));
    return bytes + frame;
  };
  const auto frame = [](std::string_view content, auto... parameters) {
    ZSTD_CCtx* context = ZSTD_createCCtx();
    (ZSTD_CCtx_setParameter(context, parameters.first, parameters.second), ...);
    std::string out(ZSTD_compressBound(content.size()), '\0');
    out.resize(ZSTD_compress2(context, out.data(), out.size(), content.data(), content.size()));
    ZSTD_freeCCtx(context);
    return out;
  };
  CHECK(packed([&](auto content) { return block(frame(content)); }).empty());
  const std::string skippable("\x50\x2a\x4d\x18\x01\0\0\0x", 9);
  CHECK(has(packed([&](auto content) { return block(skippable + frame(content)); }),
            "not a zstd frame"));
  CHECK(has(packed([&](auto content) { return block(frame(content) + skippable); }),
            "after a zstd frame"));
  CHECK(has(packed([&](auto content) {
              return block(frame(content.substr(0, 90)) + frame(content.substr(90)));
            }),
            "after a zstd frame"));
  const auto option = [&](ZSTD_cParameter parameter, int value) {
    return packed([&](auto content) { return block(frame(content, std::pair(parameter, value))); });
  };
  CHECK(has(option(ZSTD_c_checksumFlag, 1), "unexpected options"));
  CHECK(has(option(ZSTD_c_contentSizeFlag, 0), "unexpected options"));
  const std::string bomb(100'000, '\0');
  CHECK(has(packed([&](auto) { return block(frame(bomb)); }), "more than its limit"));
  CHECK(has(packed([&](auto content) { return block(frame(content).substr(0, 30)); }),
            "truncated zstd frame"));
  CHECK(has(packed([](auto) { return std::string(20, '\0'); }), "wrong size"));
  CHECK(has(packed([](auto content) { return std::string("\xff\xff") + std::string(content); }),
            "wrong size"));
  CHECK(has(packed([](auto content) {
              return Parts::pack_block(content.substr(0, 50)) +
                     Parts::pack_block(content.substr(50));
            }),
            "is not full"));
}

TEST_CASE("verify_squashfs_trailing_data_is_refused") {
  CHECK(has(refusal(sample() + std::string(4096, '\0')), "wrong file size"));
  CHECK(has(refusal(sample() + "x"), "wrong file size"));
  auto image = sample();
  image.back() = 'x';
  CHECK(has(refusal(image), "trailing data after the image"));
  CHECK(has(with([](Parts& parts) { parts.inodes += std::string(20, '\0'); }),
            "trailing data after the last entry"));
  CHECK(has(with([](Parts& parts) { parts.directories += std::string(20, '\0'); }),
            "trailing data after the last entry"));
  CHECK(has(with([](Parts& parts) { parts.pairs += "x"; }), "trailing data after the last entry"));
}
