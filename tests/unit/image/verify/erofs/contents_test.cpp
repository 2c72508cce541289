// EROFS images with directory entries, targets and file data that the writer does not make. Each is
// refused.

#include <array>

#include "unit/catch2_compat.hpp"
#include "unit/has.hpp"
#include "unit/image/samples/erofs_image.hpp"
#include "unit/image/samples/layer_tar.hpp"
#include "unit/image/samples/verify_parts.hpp"

using namespace spc;
using namespace spc::test;

namespace {

class Sample {
 public:
  Sample() : image_(erofs_sample().image()) {}

  [[nodiscard]] const ErofsImage& image() const { return image_; }
  [[nodiscard]] std::size_t inode(std::string_view path) const {
    return image_.inodes.find(path)->second;
  }
  [[nodiscard]] std::uint64_t nid(std::string_view path) const { return inode(path) / 32; }
  [[nodiscard]] std::size_t behind(std::string_view path) const {
    return image_.behind.find(path)->second;
  }
  [[nodiscard]] std::size_t entry(std::string_view path) const {
    return image_.entries.find(path)->second;
  }
  [[nodiscard]] std::size_t name(std::string_view path) const {
    return image_.names.find(path)->second;
  }
  template <typename Number>
  [[nodiscard]] Number number(std::size_t at) const {
    return get<Number>(image_.bytes, at);
  }

 private:
  ErofsImage image_;
};

const Sample& sample_of_all() {
  static const Sample sample;
  return sample;
}

/// Returns the refusal after some bytes are changed.
std::string with_bytes(std::size_t at, std::string_view bytes) {
  ErofsImage image = sample_of_all().image();
  image.bytes.replace(at, bytes.size(), bytes);
  return refusal(image.seal().bytes);
}

template <typename Number>
std::string with_value(std::size_t at, Number value) {
  return with_bytes(at, {reinterpret_cast<const char*>(&value), sizeof value});
}

/// Returns the position of a file's index.
std::size_t index_of(std::string_view path) { return (sample_of_all().behind(path) + 7) / 8 * 8; }

}  // namespace

TEST_CASE("verify_erofs_entry_names_a_later_inode_once") {
  const Sample& s = sample_of_all();
  CHECK(has(with_value(s.entry("d"), s.nid("void")), "a directory that two entries name"));
  CHECK(has(with_value(s.entry("d"), s.nid("")), "an entry names an inode in block 0"));
  CHECK(has(with_value(s.entry("d/a"), s.nid("")), "an entry names an inode in block 0"));
  CHECK(has(with_value(s.entry("d/a"), std::uint64_t{127}), "an entry names an inode in block 0"));
  CHECK(has(with_value(s.entry("many/1000"), s.nid("many")),
            "an entry names a directory in front of it"));
  CHECK(has(with_value(s.entry("many/1000"), s.nid("d")),
            "an entry names a directory in front of it"));
  CHECK(has(with_value(s.entry("d/a"), s.nid("!first")), "wrong link count"));
  CHECK(has(with_value(s.entry("d/a"), s.nid("link")), "entries name it as different things"));
  CHECK(has(with_value(s.entry("d/a"), s.nid("many")), "an entry names it as something else"));
  const std::uint64_t end = s.image().bytes.size() / 32;
  for (const auto nid :
       std::to_array<std::uint64_t>({end, end + 1, std::uint64_t{1} << 61U, ~std::uint64_t{0}})) {
    CHECK(has(with_value(s.entry("d/a"), nid), "beyond the end of the image"));
    CHECK(has(with_value(s.entry("d"), nid), "beyond the end of the image"));
  }
  CHECK_FALSE(with_value(s.entry("d/a"), end - 1).empty());
}

TEST_CASE("verify_erofs_dot_entries_are_correct") {
  const Sample& s = sample_of_all();
  for (const char* path : {".", "d/.", "many/."}) {
    CHECK(has(with_value(s.entry(path), s.nid("void")), "a wrong entry . or .."));
    CHECK(has(with_value(s.entry(path) + 10, std::uint8_t{1}), "a wrong entry . or .."));
    CHECK(has(with_bytes(s.name(path), ","), "an entry names"));
  }
  for (const char* path : {"..", "d/..", "many/.."}) {
    CHECK(has(with_value(s.entry(path), s.nid("void")), "a wrong entry . or .."));
    CHECK(has(with_bytes(s.name(path), ".x"), "an entry names"));
  }
  for (const char* path : {"void/.", "void/.."}) {
    ErofsImage image = s.image();
    image.set(s.entry(path), s.nid("d/a")).set(s.entry(path) + 10, std::uint8_t{1});
    image.bytes[s.name(path) + (path == std::string_view("void/.") ? 0 : 1)] =
        path == std::string_view("void/.") ? ',' : 'x';
    CHECK(has(refusal(image.seal().bytes), "without entries . and .."));
  }
}

TEST_CASE("verify_erofs_names_are_valid_and_sorted") {
  const Sample& s = sample_of_all();
  CHECK(with_bytes(s.name("fifo"), "fiji").empty());
  CHECK(has(with_bytes(s.name("fifo"), "f/fo"), "invalid name"));
  CHECK(has(with_bytes(s.name("fifo"), std::string_view("f\0fo", 4)), "invalid name"));
  CHECK(has(with_bytes(s.name("fifo"), "pipe"), "not sorted"));
  CHECK(has(with_bytes(s.name("hide"), "gone"), "not sorted"));
  const auto at = s.number<std::uint16_t>(s.entry("fifo") + 8);
  CHECK(has(with_value(s.entry("fifo") + 8, static_cast<std::uint16_t>(at - 5)),
            "wrong length of a name"));
  CHECK(has(with_value(s.entry("fifo") + 8, static_cast<std::uint16_t>(at - 6)),
            "wrong position of a name"));
  CHECK(has(with_value(s.entry("fifo") + 8, std::uint16_t{0}), "wrong position of a name"));
  CHECK(has(with_value(s.entry("fifo") + 8, std::uint16_t{65535}), "wrong position of a name"));
  for (const auto length : {1U, 255U, 256U}) {
    ErofsTree tree;
    tree.file(std::string(length, 'n'), "x");
    tree.file("o", "x");
    const auto refused = refusal(tree.image().bytes);
    CHECK((length < 256 ? refused.empty() : has(refused, "wrong length of a name")));
  }
}

TEST_CASE("verify_erofs_entry_blocks_have_expected_form") {
  const Sample& s = sample_of_all();
  const std::size_t first = s.behind("d");
  for (const auto wrong : std::to_array<std::uint16_t>({0, 11, 13, 12 * 400, 65532, 65535})) {
    CHECK(has(with_value(first + 8, wrong), "wrong number of entries in a block"));
  }
  const auto right = s.number<std::uint16_t>(first + 8);
  CHECK_FALSE(with_value(first + 8, static_cast<std::uint16_t>(right - 12)).empty());
  CHECK_FALSE(with_value(first + 8, static_cast<std::uint16_t>(right + 12)).empty());

  const std::size_t size = s.inode("d") + 8;
  CHECK(has(with_value(size, std::uint64_t{0}), "it is empty"));
  CHECK(has(with_value(size, std::uint64_t{11}), "a cut off entry"));
  CHECK(has(with_value(size, std::uint64_t{12}), "wrong number of entries in a block"));
  CHECK(has(with_value(size, s.number<std::uint64_t>(size) + 1), "invalid name"));
  CHECK(has(with_value(size, std::uint64_t{1} << 20U), "unexpected layout"));
  CHECK(has(with_value(size, ~std::uint64_t{0}), "unexpected layout"));

  // The second block's last name ends at the first zero.
  const std::size_t block = s.behind("many") + 4096;
  CHECK(has(with_value(block + 4095, std::uint8_t{1}), "data behind the names of a block"));
  ErofsTree tree = erofs_sample();
  CHECK(has(refusal(tree.image({.directory_fill = 3000}).bytes),
            "a block of entries that is not full"));
  const std::size_t many = s.inode("many");
  CHECK(has(with_value(many + 16, static_cast<std::uint32_t>(s.image().bytes.size() / 4096)),
            "beyond the end"));
  CHECK(has(with_value(many + 16, ~std::uint32_t{0}), "beyond the end"));
  CHECK(has(with_value(many + 16, std::uint32_t{0}), "its data is in block 0"));
  CHECK(has(with_value(many + 8, ~std::uint64_t{0}), "beyond the end"));
  CHECK(has(with_value(many, std::uint16_t{1 | 2 << 1}), "unexpected layout"));
  CHECK(has(with_value(s.inode("d"), std::uint16_t{1}), "unexpected layout"));
  CHECK(has(with_value(s.inode("d") + 16, std::uint32_t{1}), "unexpected layout"));
}

TEST_CASE("verify_erofs_link_targets_have_path_length") {
  const Sample& s = sample_of_all();
  for (const auto size :
       std::to_array<std::uint64_t>({0, 4096, std::uint64_t{1} << 40U, ~std::uint64_t{0}})) {
    CHECK(has(with_value(s.inode("link") + 8, size), "the link's target has a wrong length"));
    CHECK(has(with_value(s.inode("long") + 8, size), "the link's target has a wrong length"));
  }
  CHECK(with_value(s.inode("link") + 8, std::uint64_t{2}).empty());
  CHECK(has(with_value(s.behind("link") + 1, std::uint8_t{0}), "the link's target contains NUL"));
  CHECK(
      has(with_value(s.behind("long") + 4094, std::uint8_t{0}), "the link's target contains NUL"));
  CHECK(has(with_value(s.inode("link"), std::uint16_t{1}), "unexpected layout"));
  CHECK(has(with_value(s.inode("long") + 8, std::uint64_t{4000}), "unexpected layout"));
  CHECK(has(with_value(s.inode("long") + 16, ~std::uint32_t{0}), "beyond the end"));
}

TEST_CASE("verify_erofs_data_blocks_are_inside_and_unshared") {
  const Sample& s = sample_of_all();
  const std::size_t plain = s.inode("d/h");
  CHECK(has(with_value(plain + 16, std::uint32_t{0}), "its data is in block 0"));
  CHECK(has(with_value(plain + 16, ~std::uint32_t{0}), "beyond the end"));
  CHECK(has(with_value(plain + 16, static_cast<std::uint32_t>(s.image().bytes.size() / 4096 - 1)),
            "beyond the end"));
  CHECK(has(with_value(plain + 8, ~std::uint64_t{0}), "beyond the end"));
  CHECK(has(with_value(plain + 8, std::uint64_t{1} << 45U), "beyond the end"));
  CHECK(has(with_value(plain + 16, s.number<std::uint32_t>(plain + 16) + 1),
            "two inodes share their data"));
  CHECK(has(with_value(plain + 16, s.number<std::uint32_t>(s.inode("many") + 16)),
            "two inodes share their data"));
  CHECK(has(with_value(plain + 16, static_cast<std::uint32_t>(plain / 4096)),
            "data overlaps an inode"));
  CHECK(has(with_value(s.inode("empty") + 16, std::uint32_t{1}), "an empty file has a position"));
  CHECK(has(with_value(s.inode("empty"), std::uint16_t{5}), "unexpected layout"));
  const std::size_t inlined = s.inode("d/full");
  CHECK(has(with_value(inlined + 16, std::uint32_t{1}), "unexpected layout"));
  CHECK(has(with_value(inlined + 8, std::uint64_t{4096 - 64 + 1}), "unexpected layout"));
  CHECK(has(with_value(inlined + 8, ~std::uint64_t{0}), "unexpected layout"));
}

TEST_CASE("verify_erofs_chunks_have_expected_size") {
  const Sample& s = sample_of_all();
  const std::size_t inode = s.inode("d/holes");
  for (const auto format : std::to_array<std::uint32_t>({0, 4, 6, 0x25, 0x45, 0x10005})) {
    CHECK(has(with_value(inode + 16, format), "chunks of another size or form"));
  }
  const std::size_t list = s.behind("d/holes");
  const auto second = s.number<std::uint32_t>(list + 4);
  CHECK(has(with_value(list + 8, std::uint32_t{7}), "its blocks are not consecutive"));
  CHECK(has(with_value(list + 4, second + 1), "its blocks are not consecutive"));
  CHECK(has(with_value(list, second - 32), "chunks without a hole") == false);
  CHECK(has(with_value(list, second), "its blocks are not consecutive"));
  CHECK(has(with_value(s.behind("holes"), s.number<std::uint32_t>(s.behind("holes") + 4) - 32),
            "chunks without a hole"));
  CHECK(has(with_value(s.behind("holes") + 4, std::uint32_t{0}), "its data is in block 0"));
  CHECK(has(with_value(s.behind("holes") + 4, ~std::uint32_t{0} - 1), "beyond the end"));
  CHECK(has(with_value(s.inode("d/nothing") + 8, std::uint64_t{0}), "chunks without a hole"));
  CHECK(has(with_value(inode + 8, ~std::uint64_t{0}), "beyond the end of the image"));
  CHECK(has(with_value(inode + 8, std::uint64_t{1} << 36U), "beyond the end of the image"));
  CHECK(has(with_value(inode + 8, std::uint64_t{200'000'000}),
            "longer than a block and does not begin with one"));
}

TEST_CASE("verify_erofs_index_head_is_expected") {
  const Sample& s = sample_of_all();
  const std::size_t index = index_of("d/mixed");
  for (std::size_t at = 0; at < 16; ++at) {
    CHECK(has(with_value(index + at, static_cast<std::uint8_t>(s.image().bytes[index + at] + 1)),
              "unexpected head of its index"));
  }
  REQUIRE(s.behind("d/tail") != index_of("d/tail"));
  CHECK(has(with_value(s.behind("d/tail"), std::uint8_t{1}), "unexpected head of its index"));
  const std::size_t inode = s.inode("d/mixed");
  CHECK(has(with_value(inode + 16, s.number<std::uint32_t>(inode + 16) + 1),
            "wrong number of blocks"));
  CHECK(has(with_value(inode + 16, s.number<std::uint32_t>(inode + 16) - 1),
            "wrong number of blocks"));
  CHECK(has(with_value(inode + 8, ~std::uint64_t{0}), "beyond the end of the image"));
  CHECK(has(with_value(inode + 8, std::uint64_t{0}), "nothing is compressed"));
  ErofsTree tree;
  tree.file("f", std::string(10'000, 'x'), Stored::compressed);
  CHECK(has(refusal(tree.image({.is_compressed = false}).bytes),
            "it is compressed, where nothing is"));
  ErofsTree noisy;
  noisy.file("f", noise(10'000), Stored::compressed);
  CHECK(has(refusal(noisy.image().bytes), "nothing is compressed"));
}

TEST_CASE("verify_erofs_index_entries_are_expected") {
  const Sample& s = sample_of_all();
  // Three units: compressed, uncompressed, and compressed with a tail: 12 whole blocks and 848
  // bytes.
  const std::size_t index = index_of("d/mixed") + 16;
  const std::size_t plain = index + std::size_t{32} * 8;
  const std::size_t last = plain + std::size_t{32} * 8;
  for (const auto type : std::to_array<std::uint16_t>({0, 2, 3, 4, 0x8001, 0x8000})) {
    CHECK(has(with_value(index, type), "unexpected entry in its index"));
    if (type != 2) CHECK(has(with_value(index + 8, type), "unexpected entry in its index"));
  }
  CHECK(has(with_value(index + 8, std::uint16_t{1}), "unexpected entry in its index"));
  for (const auto type : std::to_array<std::uint16_t>({1, 2, 3, 4})) {
    CHECK(has(with_value(plain + 8, type), "unexpected entry in its index"));
    CHECK(has(with_value(last + 12 * 8, type), "unexpected end of its index"));
  }
  CHECK(has(with_value(index + 2, std::uint16_t{1}), "does not begin where expected"));
  CHECK(has(with_value(plain + 2, std::uint16_t{1}), "does not begin where expected"));
  CHECK(has(with_value(plain + 10, std::uint16_t{1}), "unexpected entry in its index"));
  CHECK(has(with_value(index + 10, std::uint16_t{1}), "unexpected entry in its index"));
  CHECK(has(with_value(index + 18, std::uint16_t{1}), "unexpected entry in its index"));
  for (const auto blocks : std::to_array<std::uint16_t>({0, 32, 33, 0x7ff})) {
    CHECK(has(with_value(index + 12, static_cast<std::uint16_t>(0x800 | blocks)),
              "wrong size of a cluster"));
  }
  CHECK(has(with_value(index + 12, std::uint16_t{0x802}), "its blocks are not consecutive"));
  CHECK(has(with_value(index + 12, std::uint16_t{1}), "unexpected entry in its index"));
  CHECK(has(with_value(index + 20, std::uint16_t{3}), "unexpected entry in its index"));
  CHECK(has(with_value(index + 20, std::uint16_t{0x802}), "unexpected entry in its index"));
  CHECK(has(with_value(index + 14, std::uint16_t{30}), "unexpected entry in its index"));
  CHECK(has(with_value(index + 22, std::uint16_t{29}), "unexpected entry in its index"));
  CHECK(has(with_value(plain + 4, std::uint32_t{1}), "its blocks are not consecutive"));
  CHECK(has(with_value(plain + 12, s.number<std::uint32_t>(plain + 12) + 1),
            "its blocks are not consecutive"));
  CHECK(has(with_value(last + 4, std::uint32_t{0}), "its blocks are not consecutive"));
  CHECK(has(with_value(last + 12 * 8 + 2, std::uint16_t{849}), "unexpected end of its index"));
  CHECK(has(with_value(last + 12 * 8 + 4, std::uint32_t{1}), "unexpected end of its index"));
  // One whole block and a tail.
  const std::size_t one = index_of("d/one") + 16;
  CHECK(has(with_value(one + 4, std::uint32_t{0}), "its data is in block 0"));
  CHECK(has(with_value(one + 4, ~std::uint32_t{0}), "beyond the end of the image"));
  CHECK(has(with_value(s.inode("d/one") + 8, std::uint64_t{4096}), "wrong size of a cluster"));
  CHECK(has(with_value(s.inode("d/one") + 8, std::uint64_t{100}), "wrong size of a cluster"));
}
