// EROFS images, as the server of image files and the layer writer read them.

#include <lz4.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "image/fuse/image_reader.hpp"
#include "image/layer/below/layers_below.hpp"
#include "unit/image/samples/erofs_tree.hpp"
#include "unit/image/samples/layer_image.hpp"
#include "unit/test.hpp"

using namespace spc;
using namespace spc::test;

namespace {

using Stored = ErofsNode::Stored;
constexpr std::size_t kUnit = 128 << 10;

constexpr fuse::Unpacker kLz4Only{
    [](std::uint16_t compressor) { return compressor == fuse::kLz4Compressor; },
    [](std::uint16_t, std::span<const std::byte> block, std::byte* into, std::size_t& size) {
      const int got = LZ4_decompress_safe(reinterpret_cast<const char*>(block.data()), reinterpret_cast<char*>(into),
                                          static_cast<int>(block.size()), static_cast<int>(size));
      size = got < 0 ? 0 : static_cast<std::size_t>(got);
      return got > 0;
    }};

/// An image in memory, and its reader.
struct Opened {
  explicit Opened(const std::string& bytes, std::uint64_t offset = 0, const fuse::CacheLimits& limits = {})
      : file(memory_file(bytes)), reader(fuse::open_image(file.get(), offset, bytes.size(), kLz4Only, limits)) {}

  [[nodiscard]] fuse::ImageReader& operator*() const { return **reader; }
  [[nodiscard]] std::string why() const { return reader ? "no error" : reader.error().message(); }

  UniqueFd file;
  Result<std::unique_ptr<fuse::ImageReader>> reader;
};

std::string random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (auto& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

/// Compresses to about half.
std::string half_random(std::size_t size, unsigned seed) {
  std::string bytes = random_bytes(size, seed);
  for (auto& byte : bytes) byte = static_cast<char>('a' + (byte & 7));
  for (std::size_t at = 0; at + 16 <= size; at += 32) bytes.replace(at, 16, "the same letters");
  return bytes;
}

std::string joined(const std::vector<fuse::Piece>& pieces) {
  std::string bytes;
  for (const auto& piece : pieces) {
    if (piece.block) {
      REQUIRE(piece.offset + piece.size <= piece.block->size);
      bytes.append(reinterpret_cast<const char*>(piece.block->bytes.get()) + piece.offset, piece.size);
    } else {
      bytes.append(piece.size, '\0');
    }
  }
  return bytes;
}

/// One of everything. `made`: the same by path.
ErofsTree everything(std::map<std::string, ErofsTree>& made) {
  std::map<std::string, ErofsTree> files;
  for (const std::size_t size : {0U, 1U, 100U, 3000U, 4032U, 4033U, 4096U, 5000U, 131'072U, 300'000U}) {
    files["plain " + std::to_string(size)] = erofs_file(random_bytes(size, static_cast<unsigned>(size)));
  }
  for (const std::size_t rest : {0U, 1U, 4095U, 4096U, 4097U, 8191U, 8192U, 100'000U}) {
    const auto text = half_random(kUnit, 1) + random_bytes(kUnit, 2) + half_random(kUnit, 3);
    files["packed " + std::to_string(rest)] = erofs_file(text + half_random(rest, 4), Stored::compressed);
  }
  files["small packed"] = erofs_file(half_random(8191, 5), Stored::compressed);
  files["large packed"] = erofs_file(half_random(20 * kUnit + 5, 6), Stored::compressed);
  files["sparse"] = erofs_file(random_bytes(kUnit, 7) + std::string(2 * kUnit, '\0') + random_bytes(70'001, 8), Stored::chunks);
  files["only a hole"] = erofs_file(std::string(5 * kUnit - 1, '\0'), Stored::chunks);
  files["attributes"] = erofs_file("with attributes", Stored::automatic);
  files["attributes"]->xattrs = {{"user.one", "1"}, {"user.empty", ""}, {"user.large", std::string(9000, 'x')}};
  files["attributes"]->mode = S_IFREG | 0751;
  files["packed 1"]->xattrs = {{"user.odd", "123"}};
  files["short link"] = erofs_link("plain 1");
  files["long link"] = erofs_link(std::string(4095, 'l'));
  files["whiteout"] = erofs_special(S_IFCHR);
  files["fifo"] = erofs_special(S_IFIFO | 0600);
  std::map<std::string, ErofsTree> many;
  for (int i = 0; i < 900; ++i) many["a file with number " + std::to_string(i * 7919)] = erofs_file(std::to_string(i));
  many[std::string(255, 'n')] = erofs_file("a long name");
  many["hard link"] = files["packed 4097"];
  auto opaque = erofs_directory({{"inner", erofs_directory()}});
  opaque->xattrs = {{"trusted.overlay.opaque", "y"}, {"user.overlay.opaque", "y"}};
  opaque->mode = S_IFDIR | 01777;
  opaque->mtime = 4'000'000'000;
  for (const auto& [name, node] : files) made["files/" + name] = node;
  for (const auto& [name, node] : many) made["many/" + name] = node;
  made["opaque"] = opaque;
  made["opaque/inner"] = opaque->entries["inner"];
  auto root = erofs_directory({{"files", erofs_directory(files)}, {"many", erofs_directory(many)}, {"opaque", opaque}});
  for (const auto& [name, node] : root->entries) made[name] = node;
  return root;
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

/// Everything that can be asked of an inode and what is below it; how many of the questions met damage.
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
    for (const std::uint64_t start : {std::uint64_t{0}, size / 2, size - std::min<std::uint64_t>(size, 3)}) {
      const auto pieces = reader.read(**inode, start, 150'000);
      count(pieces);
      if (pieces) CHECK(joined(*pieces).size() == std::min<std::uint64_t>(150'000, size - start));
    }
  }
  if (!S_ISDIR((*inode)->mode)) return damage;
  const auto directory = reader.directory(**inode);
  count(directory);
  if (!directory || depth > 4) return damage;
  for (const auto& entry : (*directory)->entries) damage += damage_below(reader, entry.reference, depth + 1);
  return damage;
}

unsigned damage_in(const std::string& image) {
  const Opened opened(image);
  REQUIRE(opened.why() == "no error");
  return damage_below(*opened, (*opened).summary().root);
}

template <typename Number>
std::string with(std::string image, std::size_t at, Number number) {
  return image.replace(at, sizeof number, reinterpret_cast<const char*>(&number), sizeof number);
}

/// Small, with a way of everything to be stored.
struct SmallImage {
  ErofsTree packed = erofs_file(half_random(kUnit, 1) + half_random(70'000, 2), Stored::compressed);
  ErofsTree sparse = erofs_file(std::string(kUnit, '\0') + "x", Stored::chunks);
  ErofsTree flat = erofs_file(random_bytes(5000, 3));
  ErofsTree small = erofs_file("with attributes");
  ErofsTree link = erofs_link("flat");
  ErofsTree inner = erofs_directory({{"flat", flat}});
  ErofsTree root = erofs_directory({{"packed", packed}, {"sparse", sparse}, {"flat", flat}, {"small", small}, {"link", link},
                                    {"inner", inner}, {"whiteout", erofs_special(S_IFCHR)}});
  std::string bytes;

  SmallImage() {
    small->xattrs = {{"user.one", "1"}, {"user.two", "22"}};
    bytes = erofs_image(root);
  }
};

}  // namespace

TEST_CASE("an EROFS image is read as it was written") {
  std::map<std::string, ErofsTree> made;
  const auto root = everything(made);
  const std::string image = erofs_image(root);
  const Opened opened(image);
  REQUIRE(opened.why() == "no error");
  fuse::ImageReader& reader = *opened;
  CHECK(reader.summary().bytes == image.size());
  CHECK(reader.summary().inodes == made.size());  // one has two names, and the root none

  std::map<std::uint64_t, const ErofsNode*> numbers;
  for (const auto& entry : made) {
    const ErofsTree& node = entry.second;
    INFO(entry.first);
    const auto inode = found(reader, entry.first);
    CHECK(inode.mode == node->mode);
    CHECK(inode.mtime == node->mtime);
    CHECK(inode.links == node->links);
    CHECK(numbers.emplace(inode.number, node.get()).first->second == node.get());
    CHECK(reader.xattrs(inode).value() == node->xattrs);
    if (S_ISREG(node->mode)) {
      REQUIRE(inode.size == node->data.size());
      CHECK((joined(reader.read(inode, 0, 16 << 20).value()) == node->data));
    } else if (S_ISLNK(node->mode)) {
      CHECK(reader.link_target(inode).value() == node->data);
    } else if (S_ISDIR(node->mode)) {
      CHECK(reader.directory(inode).value()->entries.size() == node->entries.size());
    } else {
      CHECK(inode.size == 0);
    }
  }
  CHECK(found(reader, "files").links == 2);
  CHECK(found(reader, "many/hard link").links == 2);
  CHECK(reader.directory(found(reader, "many")).value()->find("a file with number 1") == nullptr);
}

TEST_CASE("parts of files in an EROFS image are read at any place, by several at once, with little memory") {
  std::map<std::string, ErofsTree> made;
  const Opened opened(erofs_image(everything(made)), 0, {.blocks = 200'000, .directories = 1000});
  REQUIRE(opened.why() == "no error");
  const auto read_all = [&](std::size_t step) {
    std::string wrong;
    for (const char* name : {"plain 300000", "plain 4033", "plain 3000", "packed 8191", "packed 1", "small packed", "large packed", "sparse"}) {
      const std::string& data = made.at("files/" + std::string(name))->data;
      const auto inode = found(*opened, "files/" + std::string(name));
      for (std::size_t at = step / 3; at <= data.size(); at += step) {
        const auto pieces = (*opened).read(inode, at, step - step / 7);
        if (!pieces || joined(*pieces) != data.substr(at, step - step / 7)) wrong += name + (" at " + std::to_string(at)) + "; ";
      }
    }
    return wrong;
  };
  CHECK(read_all(4093) == "");
  std::vector<std::string> wrong(4);
  {
    std::vector<std::jthread> readers;
    for (std::size_t i = 0; i < wrong.size(); ++i) readers.emplace_back([&, i] { wrong[i] = read_all(50'021 + 77'777 * i); });
  }
  CHECK(wrong == std::vector<std::string>(4));
}

TEST_CASE("an EROFS image without compression, in the middle of a file") {
  const auto root = erofs_directory({{"file", erofs_file(random_bytes(9000, 1))}});
  const std::string image = std::string(777, 'x') + erofs_image(root, false);
  const Opened opened(image, 777);
  REQUIRE(opened.why() == "no error");
  CHECK((joined((*opened).read(found(*opened, "file"), 1, 8000).value()) == root->entries["file"]->data.substr(1, 8000)));
}

TEST_CASE("devices in an EROFS image are hidden, but not whiteouts") {
  const Opened opened(erofs_image(erofs_directory({{"block", erofs_special(S_IFBLK)}, {"null", erofs_special(S_IFCHR, 0x103)},
                                                   {"whiteout", erofs_special(S_IFCHR)}, {"file", erofs_file("x")}})));
  REQUIRE(opened.why() == "no error");
  const auto directory = (*opened).directory(found(*opened, "")).value();
  REQUIRE(directory->entries.size() == 2);
  CHECK(directory->name(directory->entries[0]) == "file");
  CHECK(directory->name(directory->entries[1]) == "whiteout");
}

TEST_CASE("EROFS images of another form are refused, and what is not EROFS is taken for a squashfs") {
  const SmallImage small;
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
  CHECK(refusal(image.substr(0, image.size() - 1)) == "the EROFS image is corrupt: it ends beyond the end of the file");
  CHECK(refusal(image.substr(0, 1100)).find("squashfs") != std::string::npos);
  CHECK(refusal(with(image, 1024, 0U)).find("squashfs") != std::string::npos);
  CHECK(refusal(with(image, 0, 0x73717368U)).find("squashfs") != std::string::npos);
}

TEST_CASE("damage in an EROFS image is an error of what it concerns") {
  const SmallImage small;
  const std::string& image = small.bytes;
  CHECK(damage_in(image) == 0);
  const auto at = [](const ErofsTree& node, std::size_t field) { return node->nid * 32 + field; };
  constexpr std::uint64_t kFar = std::uint64_t{1} << 40U;
  // Inodes.
  CHECK(damage_in(with(image, at(small.flat, 0), std::uint16_t{0})) == 2);  // compact; it has two names
  CHECK(damage_in(with(image, at(small.flat, 0), std::uint16_t{0x11})) == 2);
  CHECK(damage_in(with(image, at(small.flat, 0), std::uint16_t{3 << 1 | 1})) == 6);  // another layout: three reads each
  CHECK(damage_in(with(image, at(small.small, 4), std::uint16_t{0644})) == 1);
  CHECK(damage_in(with(image, at(small.small, 8), std::uint64_t{4000})) == 3);
  CHECK(damage_in(with(image, at(small.small, 8), ~std::uint64_t{0})) == 1);
  CHECK(damage_in(with(image, at(small.small, 32), kFar)) == 1);
  CHECK(damage_in(with(image, at(small.link, 8), std::uint64_t{4096})) == 1);
  CHECK(damage_in(with(image, at(small.link, 8), std::uint64_t{0})) == 1);
  CHECK(damage_in(with(image, small.link->data_at + 1, '\0')) == 1);
  CHECK(damage_in(with(image, at(small.inner, 8), std::uint64_t{1} << 30U)) == 1);
  CHECK(damage_in(with(image, 1024 + 14, std::uint16_t{0xffff})) == 1);
  // Where content lies, and how much there is.
  CHECK(damage_in(with(image, at(small.flat, 16), ~0U)) == 6);
  CHECK(damage_in(with(image, at(small.flat, 8), kFar)) == 6);
  CHECK(damage_in(with(image, at(small.sparse, 16), 0x25U)) == 3);
  CHECK(damage_in(with(image, at(small.sparse, 8), kFar)) == 3);
  CHECK(damage_in(with(image, small.sparse->index_at + 4, ~0U - 1)) == 3);
  CHECK(damage_in(with(image, small.sparse->index_at, ~0U - 1)) == 3);
  // Compressed units.
  const std::size_t index = small.packed->index_at, entries = index + 16;
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
  CHECK(damage_in(with(image, at(small.packed, 8), kFar)) == 3);
  CHECK(damage_in(with(image, at(small.packed, 8), std::uint64_t{kUnit + 8191})) != 0);
  // Attributes.
  const std::size_t attributes = at(small.small, 64);
  CHECK(damage_in(with(image, attributes + 4, std::uint8_t{1})) == 1);
  CHECK(damage_in(with(image, attributes + 12, std::uint8_t{0})) == 1);
  CHECK(damage_in(with(image, attributes + 12, std::uint8_t{200})) == 1);
  CHECK(damage_in(with(image, attributes + 13, std::uint8_t{2})) == 1);
  CHECK(damage_in(with(image, attributes + 14, std::uint16_t{0xffff})) == 1);
  CHECK(damage_in(with(image, at(small.small, 2), std::uint16_t{0xffff})) != 0);
}

TEST_CASE("damage in a directory of an EROFS image is an error of it") {
  const SmallImage small;
  const std::string& image = small.bytes;
  const std::size_t dirents = small.inner->data_at;  // of ".", ".." and "flat"
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
  CHECK(damage_in(with(with(image, dirents + 36, 'a'), dirents + 37, 'a')) == 1);  // "a" is in front of itself, or there twice
  // A directory that is in itself, or in what it contains.
  for (const std::uint64_t nid : {small.inner->nid, small.root->nid}) {
    CHECK(damage_in(with(with(image, dirents + 24, nid), dirents + 24 + 10, std::uint8_t{2})) == 1);
  }
}

TEST_CASE("any number in an EROFS image may be wrong") {
  const std::string image = SmallImage().bytes;
  const auto file = memory_file(image);
  const auto damage_now = [&] {
    const auto reader = fuse::open_image(file.get(), 0, image.size(), kLz4Only, {});
    return reader ? damage_below(**reader, (*reader)->summary().root) : 0;
  };
  unsigned damage = 0;
  for (std::size_t at = 1024 + 128; at + 4 <= std::size_t{2} * 4096; at += 4) {
    std::uint32_t was = 0;
    std::memcpy(&was, image.data() + at, sizeof was);
    if (was == 0 && at % 64 != 0) continue;
    for (const std::uint32_t wrong : {~0U, was + 1, was ^ 0x10000U}) {
      REQUIRE(::pwrite(file.get(), &wrong, sizeof wrong, static_cast<off_t>(at)) == sizeof wrong);
      damage += damage_now();
    }
    REQUIRE(::pwrite(file.get(), &was, sizeof was, static_cast<off_t>(at)) == sizeof was);
  }
  CHECK(damage > 150);
  CHECK(damage_now() == 0);
  for (std::size_t end = image.size(); end > 2000; end -= 1021) {
    REQUIRE(::ftruncate(file.get(), static_cast<off_t>(end)) == 0);
    damage_now();
  }
}

TEST_CASE("the layer writer sees EROFS layers below as overlayfs shows them") {
  auto opaque = erofs_directory({{"new", erofs_file("new")}});
  opaque->xattrs = {{"trusted.overlay.opaque", "y"}, {"user.overlay.opaque", "y"}};
  const auto one = erofs_file(half_random(200'000, 1), Stored::compressed);
  const auto bottom = erofs_directory({{"both", erofs_directory({{"old", one}, {"link", one}, {"gone", erofs_file("x")}})},
                                       {"opaque", erofs_directory({{"old", erofs_file("x")}})}});
  const auto top = erofs_directory({{"both", erofs_directory({{"gone", erofs_special(S_IFCHR)}, {"new", erofs_link("old")}})},
                                    {"opaque", opaque}});
  std::vector<UniqueFd> layers;
  layers.push_back(memory_file(erofs_image(bottom)));
  layers.push_back(memory_file(erofs_image(top, false)));
  auto below = below::LayersBelow::open(std::move(layers)).value();
  const auto list = below.list(*below.root().value()).value();
  const auto both = below.list(*list.find("both").value()).value();
  const auto old = *both.find("old").value();
  CHECK((joined(below.read(old, 1000, 150'000).value()) == one->data.substr(1000, 150'000)));
  CHECK(both.find("link").value()->top().reference == old.top().reference);
  CHECK_FALSE(both.find("gone").value().has_value());
  CHECK(below.target(*both.find("new").value()).value() == "old");
  const auto hidden = below.list(*list.find("opaque").value()).value();
  CHECK(hidden.find("new").value().has_value());
  CHECK_FALSE(hidden.find("old").value().has_value());
}
