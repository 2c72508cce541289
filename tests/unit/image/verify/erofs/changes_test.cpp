// Changes every byte of an EROFS image's tables, and truncates the image. Only changes of free
// values may be accepted.

#include <array>

#include "unit/catch2_compat.hpp"
#include "unit/image/samples/erofs_image.hpp"
#include "unit/image/samples/layer_tar.hpp"
#include "unit/image/samples/verify_parts.hpp"
#include "verify/verify.hpp"

using namespace spc;
using namespace spc::test;

namespace {

void check_changes(ErofsImage image, const ErofsImage::Range& table, std::size_t step) {
  for (std::size_t at = table.first; at < table.second; at += step) {
    if (at >= 1028 && at < 1032) continue;  // the checksum itself
    const char before = image.bytes[at];
    for (const unsigned bits : {0x01U, 0x02U, 0x80U, 0xffU}) {
      image.bytes[at] = static_cast<char>(static_cast<unsigned char>(before) ^ bits);
      if (at < 4096) image.seal();
      const auto refused = refusal(image.bytes);
      if (!refused.empty() || image.is_open(at)) continue;
      CAPTURE(at);
      CAPTURE(at - table.first);
      CAPTURE(bits);
      CHECK_FALSE(refused.empty());
    }
    image.bytes[at] = before;
  }
  REQUIRE(refusal(image.seal().bytes).empty());
}

}  // namespace

TEST_CASE("verify_erofs_table_changes_are_refused_or_writable") {
  const auto image = erofs_sample(false).image();
  REQUIRE(refusal(image.bytes).empty());
  for (const auto& table : image.tables) check_changes(image, table, 1);
  check_changes(image, {image.inodes.find("")->second, 4096}, 1);
}

TEST_CASE("verify_erofs_large_table_changes_are_refused") {
  const auto image = erofs_sample().image();
  for (const auto& table : image.tables) check_changes(image, table, 499);
}

TEST_CASE("verify_erofs_cut_or_moved_parts_are_refused") {
  const auto image = erofs_sample().image();
  for (std::size_t size = 0; size < image.bytes.size(); size += 4096) {
    ErofsImage cut = image;
    cut.bytes.resize(size);
    CHECK_FALSE(refusal(cut.bytes).empty());
    if (size < 8192) continue;
    cut.set(1024 + 36, static_cast<std::uint32_t>(size / 4096));
    CHECK_FALSE(refusal(cut.seal().bytes).empty());
    ErofsImage cleared = image;
    cleared.bytes.replace(size, 4096, 4096, '\0');
    (void)refusal(cleared.bytes);
    cleared.bytes.replace(size, 4096, image.bytes, size - 4096, 4096);
    (void)refusal(cleared.bytes);
  }
}

TEST_CASE("verify_erofs_shared_large_records_are_refused_fast") {
  // A naive reader would read each content again for each name.
  ErofsTree tree;
  tree.file("0", std::string(std::size_t{17} * 131072 + 1, 'i'), Stored::compressed);
  for (unsigned i = 1; i < 50; ++i) tree.file(std::to_string(i), "", Stored::plain);
  auto image = tree.image();
  // Put copies of the first record after its beginning, in the blocks of its index.
  const std::size_t first = image.inodes.find("0")->second;
  for (unsigned i = 1; i < 2; ++i) {
    image.bytes.replace(first + std::size_t{i} * 4096, 64, image.bytes, first, 64);
    image.set(image.entries.find(std::to_string(i))->second,
              std::uint64_t{(first + std::size_t{i} * 4096) / 32});
  }
  CHECK_FALSE(refusal(image.seal().bytes).empty());
}

namespace {

/// A byte source that counts the bytes read.
class CountingBytes : public verify::SpanBytes {
 public:
  using verify::SpanBytes::SpanBytes;
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
    ++calls;
    bytes += into.size();
    return verify::SpanBytes::read(offset, into);
  }
  unsigned calls = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

TEST_CASE("verify_erofs_reads_few_blocks_and_no_data") {
  ErofsTree tree;
  for (unsigned i = 0; i < 20'000; ++i) tree.file("file-" + std::to_string(i), "content");
  tree.file("data", noise(3'000'000), Stored::plain);
  const auto image = tree.image();
  CountingBytes bytes(std::as_bytes(std::span(image.bytes)));
  REQUIRE(verify_layer(bytes));
  CHECK(bytes.calls < 250);
  CHECK(bytes.bytes < image.bytes.size());
}
