// EROFS images, as read by the server of image files and the layer writer.

#include <lz4.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "convert/layers_below.hpp"
#include "filesystem/image_reader.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/image/samples/erofs_image.hpp"
#include "unit/image/samples/layer_image.hpp"
#include "unit/image/samples/layer_tar.hpp"

using namespace spc;
using namespace spc::test;

namespace {

constexpr std::size_t kUnit = 128 << 10;

constexpr fuse::Unpacker kLz4Only{
    [](std::uint16_t compressor) { return compressor == fuse::kLz4Compressor; },
    [](std::uint16_t, std::span<const std::byte> block, std::byte* into, std::size_t& size) {
      const int got = LZ4_decompress_safe(reinterpret_cast<const char*>(block.data()),
                                          reinterpret_cast<char*>(into),
                                          static_cast<int>(block.size()), static_cast<int>(size));
      size = got < 0 ? 0 : static_cast<std::size_t>(got);
      return got > 0;
    }};

/// An image in memory with its reader.
struct Opened {
  explicit Opened(const std::string& bytes, std::uint64_t offset = 0,
                  const fuse::CacheLimits& limits = {})
      : file(memory_file(bytes)),
        reader(fuse::open_image(fuse::ImageFile(file.get(), offset, bytes.size() - offset), kLz4Only,
                                limits)) {}

  [[nodiscard]] fuse::ImageReader& operator*() const { return **reader; }
  [[nodiscard]] std::string why() const { return reader ? "no error" : reader.error().message(); }

  UniqueFd file;
  Result<std::unique_ptr<fuse::ImageReader>> reader;
};

/// Returns data that compresses to about half its size.
std::string half_random(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (auto& byte : bytes) byte = static_cast<char>('a' + random() % 8);
  for (std::size_t at = 0; at + 16 <= size; at += 32) bytes.replace(at, 16, "the same letters");
  return bytes;
}

std::string joined(const std::vector<fuse::Piece>& pieces) {
  std::string bytes;
  for (const auto& piece : pieces) {
    if (piece.block) {
      REQUIRE(piece.offset + piece.size <= piece.block->size);
      bytes.append(reinterpret_cast<const char*>(piece.block->bytes.get()) + piece.offset,
                   piece.size);
    } else {
      bytes.append(piece.size, '\0');
    }
  }
  return bytes;
}

/// Returns a tree with each file type, and files at the block-size boundaries.
ErofsTree everything() {
  ErofsTree tree = erofs_sample();
  tree.directory("sizes");
  for (const std::size_t size : {1U, 4095U, 4096U, 4097U, 131'072U, 300'000U}) {
    tree.file("sizes/plain " + std::to_string(size), noise(size), Stored::plain);
  }
  for (const std::size_t rest : {0U, 1U, 4095U, 4096U, 4097U, 8191U, 8192U, 100'000U}) {
    const auto text = half_random(kUnit, 1) + noise(kUnit) + half_random(kUnit, 3);
    tree.file("sizes/packed " + std::to_string(rest), text + half_random(rest, 4),
              Stored::compressed);
  }
  tree.file("sizes/small packed", half_random(8191, 5), Stored::compressed);
  tree.file("sizes/large packed", half_random(20 * kUnit + 5, 6), Stored::compressed)
      .with("odd", "123");
  tree.file("sizes/sparse", noise(kUnit) + std::string(2 * kUnit, '\0') + noise(70'001),
            Stored::chunks);
  tree.file("sizes/" + std::string(255, 'n'), "a long name", Stored::inlined, 0751);
  tree.hard_link("sizes/hard link", "sizes/packed 4097");
  tree.directory("sizes/sticky", 01777);
  return tree;
}

fuse::Inode found(fuse::ImageReader& reader, std::string_view path) {
  auto inode = *reader.inode(reader.summary().root).value();
  for (std::string_view rest = path; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    const auto directory = reader.directory(inode).value();
    const auto* const entry = directory->find(name);
    REQUIRE(entry != nullptr);
    inode = *reader.inode(entry->reference).value();
    CHECK(entry->number == inode.number);
    CHECK(entry->type == (inode.mode & S_IFMT));
  }
  return inode;
}

/// Makes every query about an inode and its descendants. Returns the number of queries that met
/// damage.
unsigned damage_below(fuse::ImageReader& reader, std::uint64_t reference, int depth = 0) {
  const auto inode = reader.inode(reference);
  if (!inode) {
    CHECK(inode.error().kind() == ErrorKind::corrupt);
    return 1;
  }
  if (!*inode) return 0;
  unsigned damage = 0;
  const auto count = [&](const auto& answer) {
    if (!answer) CHECK(answer.error().kind() == ErrorKind::corrupt);
    damage += answer ? 0 : 1;
  };
  count(reader.xattrs(**inode));
  if (S_ISLNK((*inode)->mode)) count(reader.link_target(**inode));
  if (S_ISREG((*inode)->mode)) {
    const std::uint64_t size = (*inode)->size;
    for (const std::uint64_t start :
         {std::uint64_t{0}, size / 2, size - std::min<std::uint64_t>(size, 3)}) {
      const auto pieces = reader.read(**inode, start, 150'000);
      count(pieces);
      if (pieces) CHECK(joined(*pieces).size() == std::min<std::uint64_t>(150'000, size - start));
    }
  }
  if (!S_ISDIR((*inode)->mode)) return damage;
  const auto directory = reader.directory(**inode);
  count(directory);
  if (!directory || depth > 4) return damage;
  for (const auto& entry : (*directory)->entries)
    damage += damage_below(reader, entry.reference, depth + 1);
  return damage;
}

unsigned damage_in(const std::string& image) {
  const Opened opened(image);
  REQUIRE(opened.why() == "no error");
  return damage_below(*opened, (*opened).summary().root);
}

/// Describes an inode and its descendants.
std::map<std::string, std::string> described(fuse::ImageReader& reader, std::uint64_t reference,
                                             const std::string& path = "") {
  const auto inode = *reader.inode(reference).value();
  std::string text = std::to_string(inode.mode) + ' ' + std::to_string(inode.mtime);
  const auto xattrs = reader.xattrs(inode).value();
  for (const auto& [name, value] : xattrs) text.append(" ").append(name).append("=").append(value);
  if (S_ISREG(inode.mode)) {
    const std::string data = joined(reader.read(inode, 0, 16 << 20).value());
    text += ' ' + std::to_string(inode.links) + ' ' + std::to_string(data.size()) + ' ' +
            std::to_string(std::hash<std::string>()(data));
  }
  if (S_ISLNK(inode.mode)) text += ' ' + reader.link_target(inode).value();
  std::map<std::string, std::string> all{{path, std::move(text)}};
  if (!S_ISDIR(inode.mode)) return all;
  const auto directory = reader.directory(inode).value();
  for (const auto& entry : directory->entries)
    all.merge(described(reader, entry.reference, path + '/' + std::string(directory->name(entry))));
  return all;
}

template <typename Number>
std::string with(std::string image, std::size_t at, Number number) {
  return image.replace(at, sizeof number, reinterpret_cast<const char*>(&number), sizeof number);
}

/// Returns a small image with each way of storing content.
ErofsImage small_image() {
  ErofsTree tree;
  tree.file("packed", half_random(kUnit, 1) + half_random(70'000, 2), Stored::compressed);
  tree.file("sparse", std::string(kUnit, '\0') + "x", Stored::chunks);
  tree.file("flat", noise(5000), Stored::plain);
  tree.file("small", "with attributes").with("one", "1").with("two", "22");
  tree.symlink("link", "flat");
  tree.directory("inner");
  tree.hard_link("inner/flat", "flat");
  tree.whiteout("whiteout");
  return tree.image();
}

/// Compares a directory of the image with its source.
void compare(fuse::ImageReader& reader, const ErofsNode& node, const fuse::Inode& inode,
             std::map<std::uint64_t, const ErofsNode*>& numbers) {
  INFO(node.path);
  CHECK(inode.mode == node.mode);
  CHECK(inode.mtime == 1'700'000'000);
  CHECK(inode.links == node.links);
  CHECK(numbers.emplace(inode.number, &node).first->second == &node);
  const auto xattrs = reader.xattrs(inode).value();
  REQUIRE(xattrs.size() == node.attributes.size());
  for (std::size_t i = 0; i < xattrs.size(); ++i) {
    CHECK(xattrs[i].first ==
          (node.attributes[i].prefix == 1 ? "user." : "trusted.") + node.attributes[i].name);
    CHECK(xattrs[i].second == node.attributes[i].value);
  }
  if (S_ISREG(node.mode)) {
    REQUIRE(inode.size == node.content.size());
    CHECK((joined(reader.read(inode, 0, 16 << 20).value()) == node.content));
  } else if (S_ISLNK(node.mode)) {
    CHECK(reader.link_target(inode).value() == node.content);
  } else if (S_ISDIR(node.mode)) {
    const auto directory = reader.directory(inode).value();
    CHECK(directory->entries.size() == node.entries.size());
    for (const auto& [name, child] : node.entries) {
      const auto* const entry = directory->find(name);
      REQUIRE(entry != nullptr);
      const auto inside = reader.inode(entry->reference).value();
      CHECK(entry->number == inside->number);
      CHECK(entry->type == (inside->mode & S_IFMT));
      compare(reader, *child, *inside, numbers);
    }
    CHECK(directory->find("a name that is not there") == nullptr);
  } else {
    CHECK((inode.size == 0 && inode.device == 0));
  }
}

}  // namespace

TEST_CASE("erofs_reader_returns_written_files") {
  ErofsTree tree = everything();
  const std::string image = tree.image().bytes;
  const Opened opened(image);
  REQUIRE(opened.why() == "no error");
  CHECK((*opened).summary().bytes == image.size());
  std::map<std::uint64_t, const ErofsNode*> numbers;
  compare(*opened, tree.at(""), found(*opened, ""), numbers);
  CHECK((*opened).summary().inodes == numbers.size());
}

TEST_CASE("erofs_reader_serves_parallel_reads_in_little_memory") {
  ErofsTree tree = everything();
  const Opened opened(tree.image().bytes, 0, {.blocks = 200'000, .directories = 1000});
  REQUIRE(opened.why() == "no error");
  const auto read_all = [&](std::size_t step) {
    std::string wrong;
    for (const char* name :
         {"sizes/plain 300000", "sizes/plain 4095", "d/full", "sizes/packed 8191", "sizes/packed 1",
          "sizes/small packed", "sizes/large packed", "sizes/sparse", "d/holes", "d/tail"}) {
      const std::string& data = tree.at(name).content;
      const auto inode = found(*opened, name);
      for (std::size_t at = step / 3; at <= data.size(); at += step) {
        const auto pieces = (*opened).read(inode, at, step - step / 7);
        if (!pieces || joined(*pieces) != data.substr(at, step - step / 7))
          wrong += name + (" at " + std::to_string(at)) + "; ";
      }
    }
    return wrong;
  };
  CHECK(read_all(4093) == "");
  std::vector<std::string> wrong(4);
  {
    std::vector<std::jthread> readers;
    for (std::size_t i = 0; i < wrong.size(); ++i)
      readers.emplace_back([&, i] { wrong[i] = read_all(50'021 + 77'777 * i); });
  }
  CHECK(wrong == std::vector<std::string>(4));
}

TEST_CASE("erofs_reader_handles_uncompressed_image_at_offset") {
  ErofsTree tree;
  tree.file("file", noise(9000), Stored::plain);
  const Opened opened(std::string(777, 'x') + tree.image({.is_compressed = false}).bytes, 777);
  REQUIRE(opened.why() == "no error");
  CHECK((joined((*opened).read(found(*opened, "file"), 1, 8000).value()) ==
         tree.at("file").content.substr(1, 8000)));
}

TEST_CASE("erofs_reader_hides_devices_except_whiteouts") {
  ErofsTree tree;
  ErofsNode& block = tree.whiteout("block");
  block.mode = S_IFBLK;
  block.type = 4;
  tree.whiteout("null").block = 0x103;
  tree.whiteout("whiteout");
  tree.file("file", "x");
  const Opened opened(tree.image().bytes);
  REQUIRE(opened.why() == "no error");
  const auto directory = (*opened).directory(found(*opened, "")).value();
  REQUIRE(directory->entries.size() == 2);
  CHECK(directory->name(directory->entries[0]) == "file");
  CHECK(directory->name(directory->entries[1]) == "whiteout");
}

TEST_CASE("erofs_reader_refuses_other_forms") {
  const ErofsImage small = small_image();
  const std::string& image = small.bytes;
  const auto refusal = [](const std::string& bytes) { return Opened(bytes).why(); };
  const std::string other_form = "the EROFS image has another form than layers of the store";
  CHECK(refusal(image) == "no error");
  CHECK(refusal(with(image, 1024 + 12, std::uint8_t{9})) == other_form);
  CHECK(refusal(with(image, 1024 + 80, 0x10007U)) == other_form);
  CHECK(refusal(with(image, 1024 + 80, 5U)) == other_form);
  CHECK(refusal(with(image, 1024 + 84, std::uint16_t{3})) == other_form);
  CHECK(refusal(with(image, 1024 + 40, 1U)) == other_form);
  CHECK(refusal(with(image, 1024 + 44, 1U)) == other_form);
  CHECK(refusal(image.substr(0, image.size() - 1)) ==
        "the EROFS image is corrupt: it ends beyond the end of the file");
  CHECK(refusal(image.substr(0, 1100)).find("squashfs") != std::string::npos);
  CHECK(refusal(with(image, 1024, 0U)).find("squashfs") != std::string::npos);
  CHECK(refusal(with(image, 0, 0x73717368U)).find("squashfs") != std::string::npos);
}

TEST_CASE("erofs_reader_damage_fails_only_affected_files") {
  const ErofsImage small = small_image();
  const std::string& image = small.bytes;
  CHECK(damage_in(image) == 0);
  const auto at = [&](const char* path, std::size_t field) {
    return small.inodes.find(path)->second + field;
  };
  constexpr std::uint64_t kFar = std::uint64_t{1} << 40U;
  // Inodes.
  CHECK(damage_in(with(image, at("flat", 0), std::uint16_t{0})) == 2);  // compact; it has two names
  CHECK(damage_in(with(image, at("flat", 0), std::uint16_t{0x11})) == 2);
  CHECK(damage_in(with(image, at("flat", 0), std::uint16_t{3 << 1 | 1})) ==
        6);  // another layout: three reads each
  CHECK(damage_in(with(image, at("small", 4), std::uint16_t{0644})) == 1);
  CHECK(damage_in(with(image, at("small", 8), std::uint64_t{4000})) == 3);
  CHECK(damage_in(with(image, at("small", 8), ~std::uint64_t{0})) == 1);
  CHECK(damage_in(with(image, at("small", 32), kFar)) == 1);
  CHECK(damage_in(with(image, at("link", 8), std::uint64_t{4096})) == 1);
  CHECK(damage_in(with(image, at("link", 8), std::uint64_t{0})) == 1);
  CHECK(damage_in(with(image, at("link", 64) + 1, '\0')) == 1);
  CHECK(damage_in(with(image, at("inner", 8), std::uint64_t{1} << 30U)) == 1);
  CHECK(damage_in(with(image, 1024 + 14, std::uint16_t{0xffff})) == 1);
  // Position and size of content.
  CHECK(damage_in(with(image, at("flat", 16), ~0U)) == 6);
  CHECK(damage_in(with(image, at("flat", 8), kFar)) == 6);
  CHECK(damage_in(with(image, at("sparse", 16), 0x25U)) == 3);
  CHECK(damage_in(with(image, at("sparse", 8), kFar)) == 3);
  CHECK(damage_in(with(image, at("sparse", 64) + 4, ~0U - 1)) == 3);
  CHECK(damage_in(with(image, at("sparse", 64), ~0U - 1)) == 3);
  // Compressed units.
  const std::size_t index = at("packed", 64), entries = index + 16;
  CHECK(damage_in(with(image, index, 1U)) == 3);
  CHECK(damage_in(with(image, index + 6, std::uint8_t{1})) == 3);
  CHECK(damage_in(with(image, index + 8, 1U)) == 3);
  CHECK(damage_in(with(image, entries, 2U)) == 2);
  CHECK(damage_in(with(image, entries, 3U)) == 2);
  CHECK(damage_in(with(image, entries + 2, std::uint16_t{1})) == 2);
  CHECK(damage_in(with(image, entries + 4, ~0U)) == 2);
  CHECK(damage_in(with(image, entries + 4, 0U)) == 2);
  CHECK(damage_in(with(image, entries + 12, std::uint16_t{0x800})) == 2);
  CHECK(damage_in(with(image, entries + 12, std::uint16_t{0x820})) == 2);
  CHECK(damage_in(with(image, entries + 12, std::uint16_t{0xffff})) == 2);
  CHECK(damage_in(with(image, entries + 12, std::uint16_t{1})) == 2);
  CHECK(damage_in(with(image, entries + 8, 1U)) == 2);
  CHECK(damage_in(with(image, at("packed", 8), kFar)) == 3);
  CHECK(damage_in(with(image, at("packed", 8), std::uint64_t{kUnit + 8191})) != 0);
  // Attributes.
  const std::size_t attributes = at("small", 64);
  CHECK(damage_in(with(image, attributes + 4, std::uint8_t{1})) == 1);
  CHECK(damage_in(with(image, attributes + 12, std::uint8_t{0})) == 1);
  CHECK(damage_in(with(image, attributes + 12, std::uint8_t{200})) == 1);
  CHECK(damage_in(with(image, attributes + 13, std::uint8_t{2})) == 1);
  CHECK(damage_in(with(image, attributes + 14, std::uint16_t{0xffff})) == 1);
  CHECK(damage_in(with(image, at("small", 2), std::uint16_t{0xffff})) != 0);
}

TEST_CASE("erofs_reader_damaged_directory_fails_alone") {
  const ErofsImage small = small_image();
  const std::string& image = small.bytes;
  const std::size_t dirents = small.inodes.find("inner")->second + 64;  // of ".", ".." and "flat"
  REQUIRE(image.substr(dirents + 36, 7) == "...flat");
  CHECK(damage_in(with(image, dirents + 8, std::uint16_t{0})) == 1);
  CHECK(damage_in(with(image, dirents + 8, std::uint16_t{35})) == 1);
  CHECK(damage_in(with(image, dirents + 8, std::uint16_t{48})) == 1);
  CHECK(damage_in(with(image, dirents + 8, std::uint16_t{0xfffc})) == 1);
  CHECK(damage_in(with(image, dirents + 12 + 8, std::uint16_t{36})) == 1);
  CHECK(damage_in(with(image, dirents + 24 + 8, std::uint16_t{43})) == 1);
  CHECK(damage_in(with(image, dirents + 24 + 8, std::uint16_t{0xffff})) == 1);
  CHECK(damage_in(with(image, dirents + 24 + 10, std::uint8_t{0})) == 1);
  CHECK(damage_in(with(image, dirents + 24 + 10, std::uint8_t{8})) == 1);
  CHECK(damage_in(with(image, dirents + 24, ~std::uint64_t{0})) == 1);  // only the file
  CHECK(damage_in(with(image, dirents + 24, std::uint64_t{1} << 59U)) == 1);
  CHECK(damage_in(with(image, dirents + 39, '/')) == 1);
  CHECK(damage_in(with(image, dirents + 39, '\0')) == 1);
  CHECK(damage_in(with(with(image, dirents + 36, 'a'), dirents + 37, 'a')) ==
        1);  // "a" is not in order, or is a duplicate
  // A directory that contains itself or its ancestor.
  for (const std::uint64_t nid :
       {std::uint64_t{small.inodes.find("inner")->second / 32}, std::uint64_t{40}}) {
    CHECK(damage_in(with(with(image, dirents + 24, nid), dirents + 24 + 10, std::uint8_t{2})) == 1);
  }
}

TEST_CASE("erofs_reader_survives_any_wrong_number") {
  const ErofsImage small = small_image();
  const std::string& image = small.bytes;
  const auto file = memory_file(image);
  const auto damage_now = [&] {
    const auto reader = fuse::open_image(fuse::ImageFile(file.get(), 0, image.size()), kLz4Only, {});
    return reader ? damage_below(**reader, (*reader)->summary().root) : 0;
  };
  unsigned damage = 0;
  for (const auto& [begin, end] : small.tables) {
    for (std::size_t at = std::max<std::size_t>(begin / 4 * 4, 1024); at < end; at += 4) {
      std::uint32_t was = 0;
      std::memcpy(&was, image.data() + at, sizeof was);
      if (was == 0 && at % 32 != 0) continue;
      for (const std::uint32_t wrong : {~0U, was + 1, was ^ 0x10000U}) {
        REQUIRE(::pwrite(file.get(), &wrong, sizeof wrong, static_cast<off_t>(at)) == sizeof wrong);
        damage += damage_now();
      }
      REQUIRE(::pwrite(file.get(), &was, sizeof was, static_cast<off_t>(at)) == sizeof was);
    }
  }
  CHECK(damage > 150);
  CHECK(damage_now() == 0);
  for (std::size_t end = image.size(); end > 2000; end -= 1021) {
    REQUIRE(::ftruncate(file.get(), static_cast<off_t>(end)) == 0);
    damage_now();
  }
}

TEST_CASE("layer_writer_reads_lower_erofs_layers_as_overlayfs") {
  ErofsTree bottom;
  bottom.directory("both");
  bottom.file("both/old", half_random(200'000, 1), Stored::compressed);
  bottom.hard_link("both/link", "both/old");
  bottom.file("both/gone", "x");
  bottom.directory("opaque");
  bottom.file("opaque/old", "x");
  ErofsTree top;
  top.directory("both");
  top.whiteout("both/gone");
  top.symlink("both/new", "old");
  top.directory("opaque").with("overlay.opaque", "y", 4).with("overlay.opaque", "y");
  top.file("opaque/new", "new");
  Budget budget;
  std::vector<UniqueFd> layers;
  layers.push_back(memory_file(bottom.image().bytes));
  layers.push_back(memory_file(top.image({.is_compressed = false}).bytes));
  auto below = below::LayersBelow::open(std::move(layers), budget).value();
  const auto list = below.list(*below.root().value()).value();
  const auto both = below.list(*list.find("both").value()).value();
  const auto old = *both.find("old").value();
  CHECK((joined(below.read(old, 1000, 150'000).value()) ==
         bottom.at("both/old").content.substr(1000, 150'000)));
  CHECK(both.find("link").value()->top().reference == old.top().reference);
  CHECK_FALSE(both.find("gone").value().has_value());
  CHECK(below.target(*both.find("new").value()).value() == "old");
  const auto hidden = below.list(*list.find("opaque").value()).value();
  CHECK(hidden.find("new").value().has_value());
  CHECK_FALSE(hidden.find("old").value().has_value());
}

TEST_CASE("layer_writer_erofs_and_squashfs_agree") {
  Tar tar;
  tar.directory("d/", 01755)
      .file("d/empty", "")
      .file("d/small", "small")
      .file("d/noise", noise(200'000))
      .file("d/text", half_random(500'000, 1));
  tar.file("holes", noise(4096) + std::string(400'000, '\0') + noise(10))
      .hard_link("d/link", "d/text")
      .symlink("to", "d/small");
  tar.symlink("far", std::string(4000, 'f'))
      .entry({.name = "pipe", .type = '6'})
      .file("d/.wh.gone", "")
      .file("o/.wh..wh..opq", "");
  tar.pax(record("SCHILY.xattr.user.note", std::string(5000, 'v'))).file("note", "n");
  for (int i = 0; i < 300; ++i)
    tar.file(
        "many/" + std::to_string(i * 7919) + std::string(static_cast<std::size_t>(i % 50), 'x'),
        std::to_string(i));
  for (const auto compression : {LayerCompression::lz4, LayerCompression::none}) {
    const auto squashed = convert(tar.end(), 2, {.compression = compression});
    const auto made =
        convert(tar.end(), 2, {.compression = compression, .format = LayerFormat::erofs});
    REQUIRE(squashed.why() == "no error");
    REQUIRE(made.why() == "no error");
    const Opened one(contents(squashed.file.get())), other(contents(made.file.get()));
    REQUIRE(other.why() == "no error");
    CHECK(described(*one, (*one).summary().root) == described(*other, (*other).summary().root));
  }
}
