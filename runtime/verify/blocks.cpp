// Blocks and tables of squashfs: frames, decompression, super block, metadata streams and directory
// listings.

#include "verify/blocks.hpp"

#include <lz4.h>

#include <algorithm>
#include <array>
#include <new>

#include "base/format.hpp"

namespace spc::verify {

// --- zstd frame ---

namespace {

constexpr std::uint32_t kMagic = 0xfd2fb528;
constexpr std::size_t kBlockHeader = 3;
/// Newer versions of zstd split a frame into blocks of 8 KiB and more.
constexpr unsigned kMaxBlocks = 32;

struct Header {
  std::size_t content = 0;  ///< decompressed size of the frame
  std::size_t size = 0;     ///< size of the header
};

/// Reads a frame header (RFC 8878, 3.1.1.1). All fields except the content size are fixed.
Result<Header> read_header(std::span<const std::byte> frame) {
  Fields fields(frame);
  if (fields.take<std::uint32_t>() != kMagic) return refused("a block is not a zstd frame");
  switch (fields.take<std::uint8_t>()) {
    case 0x20: return Header{.content = fields.take<std::uint8_t>(), .size = 6};
    case 0x60: return Header{.content = fields.take<std::uint16_t>() + std::size_t{256}, .size = 7};
    case 0xa0: {
      const std::size_t content = fields.take<std::uint32_t>();
      if (content < 65536 + 256)
        return refused("a zstd frame states its size in a longer form than needed");
      return Header{.content = content, .size = 9};
    }
    default: return refused("a zstd frame has unexpected options");
  }
}

}  // namespace

Result<std::size_t> check_frame(LayerBytes& layer, std::uint64_t place, std::uint64_t size) {
  std::array<std::byte, 9 + kBlockHeader> front{};
  if (size < front.size() - 3) return refused("truncated zstd frame");
  const std::size_t there = std::min<std::size_t>(front.size(), size);
  SPC_TRY(layer.read(place, std::span(front).first(there)));
  const Header header = SPC_TRY(read_header(front));

  std::uint64_t at = header.size;
  for (unsigned i = 0; i < kMaxBlocks; ++i) {
    if (size - at < kBlockHeader) return refused("truncated zstd frame");
    std::array<std::byte, kBlockHeader> bytes{};
    if (i == 0) {
      std::copy_n(front.begin() + static_cast<std::ptrdiff_t>(at), kBlockHeader, bytes.begin());
    } else {
      SPC_TRY(layer.read(place + at, bytes));
    }
    Fields fields(bytes);
    const std::uint32_t block =
        fields.take<std::uint16_t>() | std::uint32_t{fields.take<std::uint8_t>()} << 16U;
    // type 1: one repeated byte
    const std::size_t stored = (block >> 1U & 3U) == 1 ? 1 : block >> 3U;
    at += kBlockHeader;
    if (stored > size - at) return refused("truncated zstd frame");
    at += stored;
    if ((block & 1U) == 0) continue;
    if (at != size) return refused("trailing data after a zstd frame");
    return header.content;
  }
  return refused("a zstd frame has too many blocks");
}

FrameReader::FrameReader() : context_(ZSTD_createDCtx()) {
  if (!context_) throw std::bad_alloc();
}

Result<std::size_t> FrameReader::unpack(std::span<const std::byte> frame,
                                        std::span<std::byte> into) {
  SpanBytes bytes(frame);
  const std::size_t content = SPC_TRY(check_frame(bytes, 0, frame.size()));
  if (content > into.size()) return refused("a block decompresses to more than its limit");
  const std::size_t size =
      ZSTD_decompressDCtx(context_.get(), into.data(), content, frame.data(), frame.size());
  if (ZSTD_isError(size) != 0 || size != content) return refused("a zstd frame is damaged");
  return size;
}

// --- block reader ---

Result<std::size_t> BlockReader::unpack(std::span<const std::byte> block,
                                        std::span<std::byte> into) {
  if (codec_ == Codec::zstd) return frames_.unpack(block, into);
  const int size = LZ4_decompress_safe(
      reinterpret_cast<const char*>(block.data()), reinterpret_cast<char*>(into.data()),
      static_cast<int>(block.size()), static_cast<int>(into.size()));
  if (size <= 0) return refused("an lz4 block is damaged, or decompresses to more than its limit");
  return static_cast<std::size_t>(size);
}

// --- super block ---

namespace {

constexpr std::size_t kSuperBytes = 96;
constexpr std::uint64_t kPage = 4096;  ///< the file's size is a multiple
constexpr std::uint64_t kAbsent = ~std::uint64_t{0};

enum Flags : std::uint16_t {
  kFragmentsAsIs = 0x0008,
  kNoFragments = 0x0010,
  kAlwaysFragments = 0x0020,
  kNoDuplicates = 0x0040,
  kNoAttributes = 0x0200,
  kCompressorOptions = 0x0400,
};

/// Compressor options: one uncompressed metadata block. zstd: level 1. lz4: version 1, the only
/// one, without flags.
constexpr std::array<std::uint8_t, 6> kZstdOptions{0x04, 0x80, 1, 0, 0, 0};
constexpr std::array<std::uint8_t, 10> kLz4Options{0x08, 0x80, 1, 0, 0, 0, 0, 0, 0, 0};
std::span<const std::uint8_t> options_of(Codec codec) {
  return codec == Codec::zstd ? std::span<const std::uint8_t>(kZstdOptions) : kLz4Options;
}

/// Owner table: one uncompressed metadata block with the number 0, once or twice (for user and
/// group). The table's position follows the block.
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

/// Checks the attribute tables. The header follows the sets; names and values precede both.
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
  // All ranges are checked against `used`, so they are also within the file.
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

  // The fragment table is between the directories and the owners.
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

// --- meta stream ---

namespace {
constexpr std::size_t kMetaStoredAsIs = 0x8000;
}

MetaStream::MetaStream(LayerBytes& layer, Codec codec, const char* name, std::uint64_t begin,
                       std::uint64_t end)
    : layer_(layer),
      name_(name),
      begin_(begin),
      end_(end),
      block_(begin),
      next_(begin),
      blocks_(codec),
      buffers_(std::make_unique<Buffers>()) {}

Error MetaStream::bad(const char* what) const { return refused(formatted("{}: {}", name_, what)); }

/// Decompresses the next block.
Result<void> MetaStream::load() {
  if (next_ == end_) return bad("truncated table");
  if (filled_ != 0 && filled_ != kMetaBytes)
    return bad("a metadata block before the last one is not full");
  const std::span stored =
      std::span(buffers_->stored).first(std::min<std::uint64_t>(end_ - next_, kMetaBytes + 2));
  if (stored.size() < 3) return bad("the table ends in the middle of a metadata block");
  SPC_TRY(layer_.read(next_, stored));
  const std::size_t header = Fields(stored).take<std::uint16_t>();
  const std::size_t size = header & ~kMetaStoredAsIs;
  if (size == 0 || size > stored.size() - 2) return bad("wrong size of a metadata block");
  const auto bytes = stored.subspan(2, size);
  if ((header & kMetaStoredAsIs) != 0) {
    std::copy(bytes.begin(), bytes.end(), buffers_->content.begin());
    filled_ = size;
  } else {
    filled_ = SPC_TRY_DURING(name_, blocks_.unpack(bytes, buffers_->content));
    if (size >= filled_) return bad("a metadata block is compressed but not smaller");
  }
  at_ = 0;
  block_ = next_;
  next_ += 2 + size;
  return {};
}

Result<void> MetaStream::read(std::span<std::byte> into) {
  while (!into.empty()) {
    if (at_ == filled_) SPC_TRY(load());
    const std::size_t count = std::min(into.size(), filled_ - at_);
    std::memcpy(into.data(), buffers_->content.data() + at_, count);
    at_ += count;
    into = into.subspan(count);
  }
  return {};
}

Result<void> MetaStream::skip(std::uint64_t count) {
  while (count > 0) {
    if (at_ == filled_) SPC_TRY(load());
    const std::size_t step =
        static_cast<std::size_t>(std::min<std::uint64_t>(count, filled_ - at_));
    at_ += step;
    count -= step;
  }
  return {};
}

MetaStream::Position MetaStream::position() const {
  if (at_ == kMetaBytes || filled_ == 0) return {.block = next_ - begin_, .offset = 0};
  return {.block = block_ - begin_, .offset = static_cast<std::uint32_t>(at_)};
}

Result<void> MetaStream::expect_end() const {
  if (!at_end()) return bad("trailing data after the last entry");
  return {};
}

// --- listing ---

namespace {

constexpr std::uint64_t kHeaderBytes = 12;
constexpr std::uint64_t kEntryBytes = 8;
constexpr std::uint32_t kMaxEntries = 256;
constexpr std::size_t kMaxName = 255;

bool is_legal(std::string_view name) {
  return name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

}  // namespace

/// Applies the writer's rule for the end of a group.
bool Listing::Group::has_room_for(const Entry& entry) const {
  const auto distance = std::int64_t{entry.number} - std::int64_t{number};
  return entry.block == block && distance <= 32767 && distance >= -32767 && count < kMaxEntries &&
         (count == 0 || bytes + kEntryBytes + entry.name.size() <= kMetaBytes);
}

Result<void> Listing::begin_group() {
  const auto position = stream_.position();
  const auto header = SPC_TRY(stream_.take<kHeaderBytes>());
  Fields fields(header);
  const auto last = fields.take<std::uint32_t>();
  if (last >= kMaxEntries) return refused("a listing's group has too many entries");
  begin_ = {.at = at_, .block = position.block};
  group_ = {.left = last + 1, .bytes = (position.offset + kHeaderBytes) % kMetaBytes};
  group_.block = fields.take<std::uint32_t>();
  group_.number = fields.take<std::uint32_t>();
  at_ += kHeaderBytes;
  return {};
}

Result<std::optional<Listing::Entry>> Listing::next() {
  if (at_ == size_ && group_.left == 0) return std::optional<Entry>();
  const Group previous = group_;
  begin_.reset();
  if (group_.left == 0) SPC_TRY(begin_group());

  const auto head = SPC_TRY(stream_.take<kEntryBytes>());
  Fields fields(head);
  Entry entry{.block = group_.block, .offset = fields.take<std::uint16_t>()};
  const auto distance = static_cast<std::int16_t>(fields.take<std::uint16_t>());
  entry.number = group_.number + static_cast<std::uint32_t>(distance);
  entry.kind = fields.take<std::uint16_t>();
  const std::size_t length = fields.take<std::uint16_t>() + std::size_t{1};
  if (length > kMaxName) return refused("a name is longer than 255 bytes");
  at_ += kEntryBytes + length;
  if (at_ > size_) return refused("a listing is longer than stated");
  name_.resize(length);
  SPC_TRY(stream_.read(std::as_writable_bytes(std::span(name_))));
  entry.name = name_;
  if (!is_legal(name_)) return refused("invalid name");
  if (name_ <= last_name_) return refused("names of a directory not sorted");

  if (begin_ && distance != 0) return refused("wrong number of a listing's group");
  if (!group_.has_room_for(entry) || (begin_ && begin_->at > 0 && previous.has_room_for(entry))) {
    return refused("unexpected groups in a listing");
  }
  --group_.left;
  ++group_.count;
  group_.bytes += kEntryBytes + length;
  std::swap(name_, last_name_);
  entry.name = last_name_;
  return std::optional(entry);
}

}  // namespace spc::verify
