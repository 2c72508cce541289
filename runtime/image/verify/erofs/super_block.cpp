#include "image/verify/erofs/super_block.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace spc::verify::erofs {
namespace {

constexpr std::uint64_t kSuperPlace = 1024;
constexpr std::size_t kSuperSize = 128;
constexpr std::uint32_t kErofsMagic = 0xE0F5E1E2;
constexpr std::uint32_t kSquashfsMagic = 0x73717368;

/// Offsets in the super block.
enum SuperAt : std::size_t {
  kMagicAt = 0,
  kChecksumAt = 4,
  kCompatibleAt = 8,
  kBlockBitsAt = 12,
  kSlotsAt = 13,
  kRootAt = 14,
  kInodesAt = 16,
  kTimeAt = 24,  // seconds and nanoseconds
  kBlocksAt = 36,
  kMetaAt = 40,  // where inodes and shared attributes begin
  kLabelAt = 48,
  kIncompatibleAt = 80,
  kAlgorithmsAt = 84,
  kRestAt = 86,
};

constexpr std::uint32_t kCompatible = 3;  ///< a checksum; dates are those of modification
constexpr std::uint32_t kChunks = 4;      ///< files in chunks
constexpr std::uint32_t kCompressed =
    3;  ///< zeros in front of compressed bytes; large clusters and settings
constexpr std::uint16_t kOnlyLz4 = 1;

/// lz4's settings: their size, the largest distance, blocks of the largest cluster, and nothing.
constexpr std::array<std::uint8_t, 16> kSettings{14, 0, 0xff, 0xff, 32};

Error bad_super(const char* what) { return refused(std::string("super block: ") + what); }

/// CRC32C as EROFS has it: no final inversion.
std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t sum) {
  for (const std::byte byte : bytes) {
    sum ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1U) ^ ((sum & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return sum;
}

Result<void> check_checksum(std::span<const std::byte> bytes) {
  constexpr std::array<std::byte, 4> kNone{};
  std::uint32_t sum = checksum_of(bytes.first(kChecksumAt), 0xffffffff);
  sum = checksum_of(kNone, sum);
  sum = checksum_of(bytes.subspan(kChecksumAt + kNone.size()), sum);
  if (sum != number<std::uint32_t>(bytes, kChecksumAt)) return bad_super("wrong checksum");
  return {};
}

Result<void> check_settings(std::span<const std::byte> bytes, bool is_compressed) {
  const auto found = bytes.first(kSettings.size());
  const bool are_ours = std::equal(found.begin(), found.end(), kSettings.begin(),
                                   [](auto a, auto b) { return a == std::byte{b}; });
  if (is_compressed ? !are_ours : !all_zero(found)) return bad_super("unexpected settings of lz4");
  if (!all_zero(bytes.subspan(kSettings.size())))
    return bad_super("data between the super block and the root");
  return {};
}

}  // namespace

Result<bool> SuperBlock::is_there(LayerBytes& layer) {
  if (layer.size() < kSuperPlace + kSuperSize) return false;
  std::array<std::byte, 4> magic{};
  SPC_TRY(layer.read(0, magic));
  if (number<std::uint32_t>(magic, 0) == kSquashfsMagic) return false;
  SPC_TRY(layer.read(kSuperPlace, magic));
  return number<std::uint32_t>(magic, 0) == kErofsMagic;
}

Result<SuperBlock> SuperBlock::read(Window& image) {
  if (image.size() < 2 * kBlock) return bad_super("the file is too short");
  const auto block = SPC_TRY(image.at(0, kBlock));
  if (!all_zero(block.first(kSuperPlace))) return bad_super("data in front of it");
  const auto bytes = block.subspan(kSuperPlace);
  if (number<std::uint32_t>(bytes, kMagicAt) != kErofsMagic) return bad_super("not an EROFS image");
  SPC_TRY(check_checksum(bytes));
  if (number<std::uint32_t>(bytes, kCompatibleAt) != kCompatible)
    return bad_super("unexpected compatible features");
  if (number<std::uint8_t>(bytes, kBlockBitsAt) != 12)
    return bad_super("the block size is not 4 KiB");
  if (number<std::uint8_t>(bytes, kSlotsAt) != 0) return bad_super("it is longer than 128 bytes");
  if (number<std::uint16_t>(bytes, kRootAt) != kRoot)
    return bad_super("unexpected place of the root");
  if (!all_zero(bytes.subspan(kTimeAt, kBlocksAt - kTimeAt))) return bad_super("unexpected date");
  if (image.size() % kBlock != 0 ||
      number<std::uint32_t>(bytes, kBlocksAt) != image.size() / kBlock) {
    return bad_super("wrong file size");
  }
  if (!all_zero(bytes.subspan(kMetaAt, kLabelAt - kMetaAt)))
    return bad_super("unexpected place of inodes or attributes");
  if (!all_zero(bytes.subspan(kLabelAt, kIncompatibleAt - kLabelAt)))
    return bad_super("unexpected label");

  SuperBlock super;
  super.inodes = number<std::uint64_t>(bytes, kInodesAt);
  const auto features = number<std::uint32_t>(bytes, kIncompatibleAt);
  super.is_compressed = features == (kChunks | kCompressed);
  if (!super.is_compressed && features != kChunks) return bad_super("unexpected features");
  if (number<std::uint16_t>(bytes, kAlgorithmsAt) != (super.is_compressed ? kOnlyLz4 : 0)) {
    return bad_super("unexpected algorithms");
  }
  if (!all_zero(bytes.subspan(kRestAt, kSuperSize - kRestAt)))
    return bad_super("unexpected values at its end");
  SPC_TRY(check_settings(bytes.subspan(kSuperSize, kRoot * kSlot - kSuperPlace - kSuperSize),
                         super.is_compressed));
  return super;
}

}  // namespace spc::verify::erofs
