#include "image/verify/super_block.hpp"

#include <algorithm>
#include <array>

namespace spc::verify {
namespace {

constexpr std::size_t kSuperBytes = 96;
constexpr std::uint64_t kPage = 4096;  ///< the file ends at a multiple
constexpr std::uint64_t kAbsent = ~std::uint64_t{0};

enum Flags : std::uint16_t {
  kFragmentsAsIs = 0x0008,
  kNoFragments = 0x0010,
  kAlwaysFragments = 0x0020,
  kNoDuplicates = 0x0040,
  kNoAttributes = 0x0200,
  kCompressorOptions = 0x0400,
};

/// One metadata block that is not compressed. zstd: level 1; lz4: version 1, which is the only one,
/// without flags.
constexpr std::array<std::uint8_t, 6> kZstdOptions{0x04, 0x80, 1, 0, 0, 0};
constexpr std::array<std::uint8_t, 10> kLz4Options{0x08, 0x80, 1, 0, 0, 0, 0, 0, 0, 0};
std::span<const std::uint8_t> options_of(Codec codec) {
  return codec == Codec::zstd ? std::span<const std::uint8_t>(kZstdOptions) : kLz4Options;
}

/// The same for the table of owners: number 0, once or, for user and group, twice. Its place is
/// written behind it.
constexpr std::array<std::uint8_t, 6> kOneOwner{0x04, 0x80, 0, 0, 0, 0};
constexpr std::array<std::uint8_t, 10> kTwoOwners{0x08, 0x80, 0, 0, 0, 0, 0, 0, 0, 0};

struct Super {
  std::uint32_t magic, inodes, date, block_size, fragments;
  std::uint16_t compressor, block_log, flags, owners, major, minor;
  std::uint64_t root, used, owner_table, attribute_table, inode_table, directory_table,
      fragment_table, export_table;

  explicit Super(Fields fields) {
    for (auto* number : {&magic, &inodes, &date, &block_size, &fragments})
      *number = fields.take<std::uint32_t>();
    for (auto* number : {&compressor, &block_log, &flags, &owners, &major, &minor})
      *number = fields.take<std::uint16_t>();
    for (auto* number : {&root, &used, &owner_table, &attribute_table, &inode_table,
                         &directory_table, &fragment_table, &export_table}) {
      *number = fields.take<std::uint64_t>();
    }
  }
};

Error bad_super_block(const char* what) { return refused(std::string("super block: ") + what); }

Result<void> check_constants(const Super& super) {
  if (super.magic != 0x73717368) return bad_super_block("not a squashfs image");
  if (super.major != 4 || super.minor != 0) return bad_super_block("the version is not 4.0");
  if (super.block_size != kBlockBytes || super.block_log != 17)
    return bad_super_block("the block size is not 128 KiB");
  if (super.compressor != std::uint16_t(Codec::zstd) &&
      super.compressor != std::uint16_t(Codec::lz4)) {
    return bad_super_block("the compressor is neither zstd nor lz4");
  }
  if (super.owners != 1 && super.owners != 2) return bad_super_block("expected one owner, or two");
  if (super.date != 0) return bad_super_block("unexpected date");
  if (super.export_table != kAbsent) return bad_super_block("unexpected export table");
  if (super.inodes == 0) return bad_super_block("no inodes");
  std::uint16_t flags = kNoDuplicates | kCompressorOptions;
  flags |= super.fragments == 0 ? kNoFragments : kAlwaysFragments;
  if (super.attribute_table == kAbsent) flags |= kNoAttributes;
  if (super.fragments > 0) flags |= super.flags & kFragmentsAsIs;
  if (super.flags != flags) return bad_super_block("unexpected flags");
  return {};
}

Result<void> expect(LayerBytes& layer, std::uint64_t offset, std::span<const std::uint8_t> wanted,
                    const char* what) {
  std::array<std::byte, kLz4Options.size()> found{};
  SPC_TRY(layer.read(offset, std::span(found).first(wanted.size())));
  if (!std::equal(wanted.begin(), wanted.end(), found.begin(),
                  [](auto a, auto b) { return std::byte{a} == b; })) {
    return refused(what);
  }
  return {};
}

Result<void> check_padding(LayerBytes& layer, std::uint64_t used) {
  const std::uint64_t size = layer.size();
  if (size != (used + kPage - 1) / kPage * kPage) return bad_super_block("wrong file size");
  std::array<std::byte, kPage> rest{};
  const auto padding = std::span(rest).first(size - used);
  SPC_TRY(layer.read(used, padding));
  if (std::any_of(padding.begin(), padding.end(), [](auto byte) { return byte != std::byte{0}; })) {
    return bad_super_block("trailing data after the image");
  }
  return {};
}

/// The attributes' header lies behind the sets; in front of both are the names and values.
Result<void> read_attributes(LayerBytes& layer, const Super& super, Layout& layout) {
  const std::uint64_t begin = super.owner_table + 8;
  if (super.attribute_table == kAbsent) {
    if (super.used != begin) return bad_super_block("trailing data after the owners");
    return {};
  }
  if (super.attribute_table <= begin || super.used <= super.attribute_table ||
      super.used - super.attribute_table < 16 + 8) {
    return bad_super_block("wrong position of attributes");
  }
  std::array<std::byte, 16> header{};
  SPC_TRY(layer.read(super.attribute_table, header));
  Fields fields(header);
  const auto names_begin = fields.take<std::uint64_t>();
  layout.attribute_sets = fields.take<std::uint32_t>();
  if (names_begin != begin || layout.attribute_sets == 0 || fields.take<std::uint32_t>() != 0 ||
      super.used - super.attribute_table != 16 + 8 * blocks_for(layout.attribute_sets)) {
    return bad_super_block("wrong attributes header");
  }
  layout.has_attributes = true;
  layout.attribute_places = super.attribute_table + 16;
  const std::uint64_t middle = SPC_TRY(number_at(layer, layout.attribute_places));
  if (middle <= begin || middle >= super.attribute_table)
    return bad_super_block("wrong position of attributes");
  layout.attributes = {.begin = begin, .end = middle};
  layout.sets = {.begin = middle, .end = super.attribute_table};
  return {};
}

}  // namespace

Result<std::uint64_t> number_at(LayerBytes& layer, std::uint64_t offset) {
  std::array<std::byte, 8> bytes{};
  SPC_TRY(layer.read(offset, bytes));
  return Fields(bytes).take<std::uint64_t>();
}

Result<Layout> Layout::read(LayerBytes& layer) {
  std::array<std::byte, kSuperBytes> bytes{};
  if (layer.size() < kPage) return bad_super_block("the file is too short");
  SPC_TRY(layer.read(0, bytes));
  const Super super{Fields(bytes)};
  SPC_TRY(check_constants(super));
  const auto codec = static_cast<Codec>(super.compressor);
  SPC_TRY(expect(layer, kSuperBytes, options_of(codec), "compressor options: unexpected values"));
  // What lies within what is used lies within the file.
  if (super.used > layer.size()) return bad_super_block("truncated file");
  SPC_TRY(check_padding(layer, super.used));

  Layout layout;
  layout.codec = codec;
  layout.inode_count = super.inodes;
  layout.root = super.root;
  layout.fragment_count = super.fragments;
  layout.fragments_stored_as_is = (super.flags & kFragmentsAsIs) != 0;
  layout.data = {.begin = kSuperBytes + options_of(codec).size(), .end = super.inode_table};
  layout.inodes = {.begin = super.inode_table, .end = super.directory_table};
  const bool ascend = layout.data.begin <= super.inode_table &&
                      super.inode_table < super.directory_table &&
                      super.directory_table <= super.owner_table && super.owner_table <= super.used;
  const auto list_of_owners =
      super.owners == 1 ? std::span<const std::uint8_t>(kOneOwner) : kTwoOwners;
  if (!ascend || super.owner_table - super.directory_table < list_of_owners.size() ||
      super.used - super.owner_table < 8) {
    return bad_super_block("wrong order of tables");
  }

  layout.group = static_cast<std::uint16_t>(super.owners - 1);
  const std::uint64_t owners = super.owner_table - list_of_owners.size();
  SPC_TRY(expect(layer, owners, list_of_owners, "owners: an owner other than 0"));
  if (SPC_TRY(number_at(layer, super.owner_table)) != owners)
    return refused("owners: wrong position of the table");

  layout.directories = {.begin = super.directory_table, .end = owners};
  if (super.fragments == 0) {
    if (super.fragment_table != kAbsent) return bad_super_block("empty fragment table");
  } else {
    const std::uint64_t list = 8 * blocks_for(super.fragments);
    if (super.fragment_table <= super.directory_table || super.fragment_table > owners ||
        owners - super.fragment_table != list) {
      return bad_super_block("wrong position of fragments");
    }
    layout.fragment_places = super.fragment_table;
    const std::uint64_t begin = SPC_TRY(number_at(layer, super.fragment_table));
    if (begin < super.directory_table || begin >= super.fragment_table)
      return bad_super_block("wrong position of fragments");
    layout.directories.end = begin;
    layout.fragments = {.begin = begin, .end = super.fragment_table};
  }
  SPC_TRY(read_attributes(layer, super, layout));
  return layout;
}

}  // namespace spc::verify
