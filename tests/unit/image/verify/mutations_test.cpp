// Changes every byte of an image's tables. An accepted image may differ only in free values.

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "unit/catch2_compat.hpp"
#include "unit/image/samples/verify_parts.hpp"
#include "unit/image/samples/verify_sample.hpp"

using namespace spc;
using namespace spc::test;

namespace {

constexpr std::array kChanges{0x01, 0x02, 0x80, 0xff};
constexpr std::array kCompressions{LayerCompression::zstd, LayerCompression::lz4,
                                   LayerCompression::none};

/// Returns everything except names, permissions, dates, targets, attributes' names and values, and
/// the bytes of small files. With lz4, a file's stated size may differ from that of its blocks.
/// Reading it then fails.
std::vector<std::tuple<std::uint32_t, mode_t, std::uint32_t, std::uint32_t, std::uint64_t>> shape(
    const Image& image, bool has_frames) {
  std::vector<std::tuple<std::uint32_t, mode_t, std::uint32_t, std::uint32_t, std::uint64_t>> all;
  for (const auto& [path, found] : image) {
    const std::uint64_t size = found.size < 131072 || !has_frames ? 0 : found.size;
    all.emplace_back(found.inode, found.mode & S_IFMT, found.links, found.device, size);
  }
  std::sort(all.begin(), all.end());
  return all;
}

void check_free(const Found& found) {
  CHECK((found.uid == 0 && found.gid == 0));
  CHECK((found.mode & (S_ISUID | S_ISGID)) == 0);
  const bool hides = found.xattrs.count("trusted.overlay.opaque") == 1;
  CHECK(hides == (found.xattrs.count("user.overlay.opaque") == 1));
  for (const auto& [name, value] : found.xattrs) {
    if (name == "trusted.overlay.opaque" || name == "user.overlay.opaque") {
      CHECK((value == "y" && S_ISDIR(found.mode)));
    } else {
      CHECK((name.starts_with("user.") && !name.starts_with("user.overlay.")));
    }
  }
}

/// Counts and checks the accepted changes.
void check_harmless(const std::string& changed, const Image& original, unsigned& accepted) {
  if (!refusal(changed).empty()) return;
  ++accepted;
  const auto file = memory_file(changed);
  const bool has_frames = get<std::uint16_t>(changed, kCompressor) == 6;
  Image image;
  try {
    image = read_image(file.get());
  } catch (const DamagedData&) {
    CHECK_FALSE(has_frames);
    return;
  }
  CHECK(shape(image, has_frames) == shape(original, has_frames));
  for (const auto& [path, found] : image) {
    CHECK(path.find("//") == std::string::npos);
    check_free(found);
  }
}

}  // namespace

TEST_CASE("verify_parts_reassemble_the_same_image") {
  for (const auto compression : kCompressions) {
    const auto image = sample_image(compression);
    CHECK(Parts(image).image() == image);
    CHECK(refusal(image).empty());
  }
}

TEST_CASE("verify_squashfs_table_changes_are_refused_or_writable") {
  Parts changed(sample_image());
  const Image original = read_image(memory_file(changed.image()).get());
  unsigned tried = 0;
  unsigned accepted = 0;
  for (auto table : {&Parts::inodes, &Parts::directories, &Parts::fragments, &Parts::owners,
                     &Parts::pairs, &Parts::sets}) {
    REQUIRE_FALSE((changed.*table).empty());
    for (char& byte : changed.*table) {
      const char before = byte;
      for (const int change : kChanges) {
        byte = static_cast<char>(before ^ change);
        CAPTURE(table == &Parts::inodes);
        CAPTURE(table == &Parts::directories);
        CAPTURE(&byte - (changed.*table).data());
        CAPTURE(change);
        check_harmless(changed.image(), original, accepted);
        ++tried;
      }
      byte = before;
    }
  }
  CHECK(accepted > 0);
  CHECK(accepted < tried / 2);
}

TEST_CASE("verify_squashfs_stored_changes_are_refused_or_writable") {
  for (const auto compression : kCompressions) {
    const auto image = sample_image(compression);
    const Image original = read_image(memory_file(image).get());
    unsigned accepted = 0;
    std::string changed = image;
    for (std::size_t at = get<std::uint64_t>(image, kInodeTable); at < image.size(); ++at) {
      for (const int change : {0x01, 0xff}) {
        if (at > get<std::uint64_t>(image, kUsed) + 16 && change == 0x01) continue;
        changed[at] = static_cast<char>(image[at] ^ change);
        CAPTURE(at);
        CAPTURE(change);
        check_harmless(changed, original, accepted);
      }
      changed[at] = image[at];
    }
  }
}

TEST_CASE("verify_squashfs_super_block_changes_are_refused") {
  for (const auto compression : kCompressions) {
    const auto image = sample_image(compression);
    const std::size_t options = get<std::uint16_t>(image, kCompressor) == 6 ? 6 : 10;
    std::string changed = image;
    for (std::size_t at = 0; at < 96 + options; ++at) {
      for (const int change : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff}) {
        changed[at] = static_cast<char>(image[at] ^ change);
        CAPTURE(at);
        CAPTURE(change);
        CHECK_FALSE(refusal(changed).empty());
      }
      changed[at] = image[at];
    }
  }
}

TEST_CASE("verify_squashfs_cut_anywhere_is_refused") {
  for (const auto compression : kCompressions) {
    const auto image = sample_image(compression);
    for (std::size_t size = 0; size < image.size(); size += size < 4096 ? 1 : 509) {
      CAPTURE(size);
      CHECK_FALSE(refusal(image.substr(0, size)).empty());
    }
  }
}

TEST_CASE("verify_squashfs_mixed_images_are_refused_or_harmless") {
  const Parts parts(sample_image());
  const Parts other(converted(
      Tar().directory("d/").file("d/a", noise(200'000)).symlink("d/b", "a").file("c", "c")));
  for (auto table : {&Parts::inodes, &Parts::directories, &Parts::fragments, &Parts::data}) {
    Parts changed = parts;
    changed.*table = other.*table;
    CHECK_FALSE(refusal(changed.image()).empty());
  }
}
