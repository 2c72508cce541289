#include "unit/image/samples/verify_parts.hpp"

#include <lz4.h>
#include <zstd.h>

#include <span>
#include <stdexcept>

#include "verify/verify.hpp"

namespace spc::test {
namespace {

constexpr std::uint64_t kAbsent = ~std::uint64_t{0};
constexpr std::size_t kMeta = 8192;

constexpr std::uint16_t kLz4 = 5;

std::string unpack_block(std::string_view image, std::string_view stored) {
  std::string content(kMeta, '\0');
  if (get<std::uint16_t>(image, kCompressor) == kLz4) {
    const int size = LZ4_decompress_safe(stored.data(), content.data(),
                                         static_cast<int>(stored.size()), static_cast<int>(kMeta));
    if (size < 0) throw std::logic_error("a block cannot be unpacked");
    content.resize(static_cast<std::size_t>(size));
  } else {
    content.resize(ZSTD_decompress(content.data(), content.size(), stored.data(), stored.size()));
  }
  return content;
}

std::string unpack(std::string_view image, std::uint64_t begin, std::uint64_t end) {
  std::string all;
  while (begin < end) {
    const auto header = get<std::uint16_t>(image, begin);
    const auto stored = image.substr(begin + 2, header & 0x7fffU);
    if ((header & 0x8000U) != 0) {
      all += stored;
    } else {
      all += unpack_block(image, stored);
    }
    begin += 2 + stored.size();
  }
  if (begin != end) throw std::logic_error("a table does not end where it should");
  return all;
}

}  // namespace

Parts::Parts(std::string_view image)
    : super(image.substr(0, 96)),
      options(image.substr(96, get<std::uint16_t>(image, kCompressor) == kLz4 ? 10 : 6)) {
  const auto place = [&](SuperField field) { return get<std::uint64_t>(super, field); };
  const auto owner_block = get<std::uint64_t>(image, place(kOwnerTable));
  const std::size_t data_begin = super.size() + options.size();
  data = image.substr(data_begin, place(kInodeTable) - data_begin);
  inodes = unpack(image, place(kInodeTable), place(kDirectoryTable));
  std::uint64_t listings_end = owner_block;
  if (place(kFragmentTable) != kAbsent) {
    listings_end = get<std::uint64_t>(image, place(kFragmentTable));
    fragments = unpack(image, listings_end, place(kFragmentTable));
  }
  directories = unpack(image, place(kDirectoryTable), listings_end);
  owners = unpack(image, owner_block, place(kOwnerTable));
  if (place(kAttributeTable) != kAbsent) {
    const auto header = place(kAttributeTable);
    const auto middle = get<std::uint64_t>(image, header + 16);
    pairs = unpack(image, get<std::uint64_t>(image, header), middle);
    sets = unpack(image, middle, header);
    set_count = get<std::uint32_t>(image, header + 8);
  }
}

namespace {

std::string with_header(std::string_view packed, std::string_view content) {
  const bool smaller = packed.size() < content.size();
  std::string block(2, '\0');
  block += smaller ? packed : content;
  put(block, 0, static_cast<std::uint16_t>(smaller ? packed.size() : content.size() | 0x8000U));
  return block;
}

std::string pack_with_lz4(std::string_view content) {
  const int bytes = static_cast<int>(content.size());
  std::string packed(static_cast<std::size_t>(LZ4_compressBound(bytes)), '\0');
  const int size =
      LZ4_compress_default(content.data(), packed.data(), bytes, static_cast<int>(packed.size()));
  return with_header(std::string_view(packed).substr(0, static_cast<std::size_t>(size)), content);
}

}  // namespace

std::string Parts::pack_block(std::string_view content) {
  std::string packed(ZSTD_compressBound(content.size()), '\0');
  const std::size_t size =
      ZSTD_compress(packed.data(), packed.size(), content.data(), content.size(), 1);
  return with_header(std::string_view(packed).substr(0, size), content);
}

std::string Parts::image(const Pack& other) const {
  const Pack own = get<std::uint16_t>(super, kCompressor) == kLz4 ? pack_with_lz4 : pack_block;
  const Pack& pack = other ? other : own;
  std::string out;
  out.reserve(super.size() + options.size() + data.size() + inodes.size() + directories.size() +
              fragments.size() + owners.size() + pairs.size() + sets.size() + 2 * kMeta);
  out.append(super).append(options).append(data);
  std::vector<std::uint64_t> places;
  const auto table = [&](std::string_view content, const Pack& packer) {
    places.clear();
    for (std::size_t at = 0; at < content.size(); at += kMeta) {
      places.push_back(out.size());
      out += packer(content.substr(at, kMeta));
    }
  };
  const auto list = [&](SuperField field) {
    put(out, field, std::uint64_t{out.size()});
    for (const auto place : places)
      out += std::string_view(reinterpret_cast<const char*>(&place), sizeof place);
  };
  put(out, kInodeTable, std::uint64_t{out.size()});
  table(inodes, pack);
  put(out, kDirectoryTable, std::uint64_t{out.size()});
  table(directories, pack);
  if (!fragments.empty()) {
    table(fragments, pack);
    list(kFragmentTable);
  }
  table(owners, own);
  list(kOwnerTable);
  if (!sets.empty()) {
    const std::uint64_t begin = out.size();
    table(pairs, pack);
    table(sets, pack);
    const auto set_places = places;
    places = {begin, std::uint64_t{set_count}};
    places.insert(places.end(), set_places.begin(), set_places.end());
    list(kAttributeTable);
  }
  put(out, kUsed, std::uint64_t{out.size()});
  out.resize((out.size() + 4095) / 4096 * 4096);
  return out;
}

std::map<std::uint32_t, std::size_t> Parts::inode_offsets() const {
  std::map<std::uint32_t, std::size_t> offsets;
  for (std::size_t at = 0; at < inodes.size();) {
    offsets[get<std::uint32_t>(inodes, at + 12)] = at;
    const auto blocks = [&](std::uint64_t size) {
      return size < 131072 ? 0 : (size + 131071) / 131072 * 4;
    };
    switch (get<std::uint16_t>(inodes, at)) {
      case 1: at += 32; break;
      case 2: at += 32 + blocks(get<std::uint32_t>(inodes, at + 28)); break;
      case 3: at += 24 + get<std::uint32_t>(inodes, at + 20); break;
      case 5: at += 24; break;
      case 6: at += 20; break;
      case 8: {
        const auto indexes = get<std::uint16_t>(inodes, at + 32);
        at += 40;
        for (unsigned i = 0; i < indexes; ++i) at += 12 + get<std::uint32_t>(inodes, at + 8) + 1;
        break;
      }
      case 9: at += 56 + blocks(get<std::uint64_t>(inodes, at + 24)); break;
      default: throw std::logic_error("an inode of unknown type");
    }
  }
  return offsets;
}

std::size_t Parts::entry_offset(std::string_view name) const {
  for (std::size_t at = 0; at < directories.size();) {
    const auto count = get<std::uint32_t>(directories, at) + 1;
    at += 12;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::size_t length = get<std::uint16_t>(directories, at + 6) + std::size_t{1};
      if (directories.compare(at + 8, length, name) == 0) return at;
      at += 8 + length;
    }
  }
  throw std::logic_error("there is no entry " + std::string(name));
}

std::size_t Parts::inode_offset(std::string_view name) const {
  return name.empty() ? get<std::uint16_t>(super, kRoot)
                      : get<std::uint16_t>(directories, entry_offset(name));
}

std::string refusal(std::string_view image) {
  const auto accepted = verify_layer(std::as_bytes(std::span(image)));
  if (accepted) return {};
  if (accepted.error().kind() != ErrorKind::refused)
    throw std::logic_error("neither accepted nor refused");
  return accepted.error().message();
}

}  // namespace spc::test
