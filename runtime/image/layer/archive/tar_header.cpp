#include "image/layer/archive/tar_header.hpp"

#include <algorithm>
#include <limits>

#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::uint64_t kMaxNumber = std::numeric_limits<std::int64_t>::max();

Error bad(std::string_view what) { return Error(ErrorKind::corrupt, std::string(what)); }

/// A field's text, to its first NUL.
std::string_view text_at(TarBlock block, std::size_t offset, std::size_t size) {
  const std::string_view field(reinterpret_cast<const char*>(block.data()) + offset, size);
  return field.substr(0, field.find('\0'));
}

struct Number {
  bool negative = false;
  std::uint64_t value = 0;
};

/// Octal digits between blanks, or GNU's base-256. Readers differ in what they make of blanks
/// alone, of a NUL before the digits and of other first bytes than GNU's two.
Result<Number> number_at(TarBlock block, std::size_t offset, std::size_t size, const char* what) {
  const auto field = block.subspan(offset, size);
  const auto first = static_cast<std::uint8_t>(field[0]);
  if (first == 0xff)
    return Number{.negative = true};  // only a time may be: then it is the earliest we can store
  if (first == 0x80) {
    Number number;
    for (const auto byte : field.subspan(1)) {
      if ((number.value >> 55U) != 0) return bad(formatted("the {} is out of range", what));
      number.value = number.value << 8U | static_cast<std::uint8_t>(byte);
    }
    return number;
  }
  auto text = text_at(block, offset, size);
  const bool is_blank = text.empty()
                            ? !std::all_of(field.begin(), field.end(),
                                           [](std::byte byte) { return byte == std::byte{0}; })
                            : text.find_first_not_of(' ') == std::string_view::npos;
  if (is_blank) return bad(formatted("the {} is not a number", what));
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  Number number;
  for (const char c : text) {
    if (c < '0' || c > '7') return bad(formatted("the {} is not a number", what));
    if ((number.value >> 60U) != 0) return bad(formatted("the {} is out of range", what));
    number.value = number.value << 3U | static_cast<std::uint64_t>(c - '0');
  }
  return number;
}

Result<std::uint64_t> size_at(TarBlock block, std::size_t offset, std::size_t size,
                              const char* what) {
  const Number number = SPC_TRY(number_at(block, offset, size, what));
  if (number.negative || number.value > kMaxNumber)
    return bad(formatted("the {} is out of range", what));
  return number.value;
}

std::uint32_t storable_time(Number time) {
  if (time.negative) return 0;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(time.value, std::numeric_limits<std::uint32_t>::max()));
}

Result<void> check_sum(TarBlock block) {
  const auto stated = number_at(block, 148, 8, "checksum");
  std::uint32_t sum = 0;
  std::int32_t signed_sum = 0;  // some old writers
  for (std::size_t i = 0; i < kTarBlock; ++i) {
    const auto byte = i >= 148 && i < 156 ? std::uint8_t{' '} : static_cast<std::uint8_t>(block[i]);
    sum += byte;
    signed_sum += static_cast<std::int8_t>(byte);
  }
  if (!stated || (stated->value != sum && static_cast<std::int64_t>(stated->value) != signed_sum)) {
    return bad("the header's checksum is wrong, or this is not a tar archive");
  }
  return {};
}

/// `[-]digits[.digits]`
Result<std::uint32_t> parse_time(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const auto point = text.find('.');
  if (point != std::string_view::npos) {
    const auto fraction = text.substr(point + 1);
    if (!std::all_of(fraction.begin(), fraction.end(),
                     [](char c) { return c >= '0' && c <= '9'; })) {
      return bad("an extended header's time is not a number");
    }
    text = text.substr(0, point);
  }
  const auto seconds = SPC_TRY(parse_decimal(text));
  return storable_time({.negative = negative, .value = seconds});
}

Result<void> add_extent(std::vector<Extent>& extents, Extent extent) {
  if (extents.size() >= kMaxExtents) return bad("the sparse file has too many parts");
  extents.push_back(extent);
  return {};
}

}  // namespace

bool is_zero(TarBlock block) {
  return std::all_of(block.begin(), block.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

Result<std::uint64_t> parse_decimal(std::string_view text) {
  std::uint64_t value = 0;
  if (text.empty()) return bad("an extended header has no number where one is needed");
  for (const char c : text) {
    if (c < '0' || c > '9') return bad("an extended header's number has something else in it");
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (value > (kMaxNumber - digit) / 10)
      return bad("an extended header's number is out of range");
    value = value * 10 + digit;
  }
  return value;
}

Result<TarHeader> TarHeader::parse(TarBlock block) {
  SPC_TRY(check_sum(block));
  TarHeader header;
  header.type = static_cast<char>(block[156]);
  header.name = text_at(block, 0, 100);
  header.link = text_at(block, 157, 100);
  header.size = SPC_TRY(size_at(block, 124, 12, "size"));
  header.mode = static_cast<std::uint16_t>(SPC_TRY(size_at(block, 100, 8, "mode")) & 07777U);
  header.mtime = storable_time(SPC_TRY(number_at(block, 136, 12, "time")));
  // GNU's magic is "ustar  \0", and the bytes of the prefix mean something else there.
  const std::string_view magic(reinterpret_cast<const char*>(block.data()) + 257, 6);
  if (magic == std::string_view("ustar\0", 6)) {
    const auto prefix = text_at(block, 345, 155);
    if (!prefix.empty()) header.name = std::string(prefix) + '/' + header.name;
  }
  return header;
}

Result<PaxRecords> PaxRecords::parse(std::string_view text) {
  PaxRecords records;
  while (!text.empty()) {
    const auto blank = text.find(' ');
    if (blank == std::string_view::npos || blank > 10)
      return bad("an extended header's record has no length");
    const auto length = SPC_TRY(parse_decimal(text.substr(0, blank)));
    if (length <= blank + 2 || length > text.size())
      return bad("an extended header's record has a wrong length");
    if (text[length - 1] != '\n') return bad("an extended header's record has a wrong end");
    const auto record = text.substr(blank + 1, length - blank - 2);
    text.remove_prefix(length);
    const auto equals = record.find('=');
    if (equals == std::string_view::npos || equals == 0)
      return bad("an extended header's record has no key");
    const auto key = record.substr(0, equals);
    if (key.find('\0') != std::string_view::npos)
      return bad("an extended header's key contains NUL");
    SPC_TRY(records.apply(key, record.substr(equals + 1)));
  }
  if (records.offset_pending_) return bad("the sparse file's map is incomplete");
  return records;
}

Result<void> PaxRecords::apply(std::string_view key, std::string_view value) {
  constexpr std::string_view kXattr = "SCHILY.xattr.";
  if (key.starts_with("GNU.sparse.")) return apply_sparse(key.substr(11), value);
  if (key.starts_with(kXattr)) {
    xattrs.push_back({std::string(key.substr(kXattr.size())), std::string(value)});
    return {};
  }
  if (key == "path" || key == "linkpath") {
    // To POSIX an empty value takes the name away, to others it says nothing.
    if (value.empty()) return bad("an extended header's path is empty");
    if (value.find('\0') != std::string_view::npos)
      return bad("an extended header's path contains NUL");
    (key == "path" ? path : link) = value;
  } else if (key == "size") {
    size = SPC_TRY(parse_decimal(value));
    has_size = true;
  } else if (key == "mtime") {
    mtime = SPC_TRY(parse_time(value));
    has_mtime = true;
  }
  return {};  // the rest is for others: owners, access times, comments
}

Result<void> PaxRecords::apply_sparse(std::string_view key, std::string_view value) {
  sparse = true;
  if (key == "major") {
    sparse_map_in_data = value == "1";
    if (!sparse_map_in_data && value != "0") return bad("the sparse file has an unknown format");
  } else if (key == "name") {
    if (value.empty()) return bad("an extended header's path is empty");
    if (value.find('\0') != std::string_view::npos)
      return bad("an extended header's path contains NUL");
    path = value;
  } else if (key == "size" || key == "realsize") {
    sparse_size = SPC_TRY(parse_decimal(value));
    has_sparse_size = true;
  } else if (key == "offset") {
    if (offset_pending_) return bad("the sparse file's map is incomplete");
    const auto offset = SPC_TRY(parse_decimal(value));
    SPC_TRY(add_extent(extents, {.offset = offset}));
    offset_pending_ = true;
  } else if (key == "numbytes") {
    if (!offset_pending_) return bad("the sparse file's map is incomplete");
    extents.back().size = SPC_TRY(parse_decimal(value));
    offset_pending_ = false;
  } else if (key == "map") {
    while (!value.empty()) {
      const auto number = [&]() -> Result<std::uint64_t> {
        const auto comma = std::min(value.find(','), value.size());
        const auto text = value.substr(0, comma);
        value.remove_prefix(std::min(comma + 1, value.size()));
        return parse_decimal(text);
      };
      const auto offset = SPC_TRY(number());
      const auto size_of_part = SPC_TRY(number());
      SPC_TRY(add_extent(extents, {.offset = offset, .size = size_of_part}));
    }
  } else if (key != "minor" && key != "numblocks") {
    return bad("the sparse file has an unknown format");
  }
  return {};
}

Result<bool> append_gnu_sparse_map(TarBlock block, bool is_header, std::vector<Extent>& extents) {
  const std::size_t begin = is_header ? 386 : 0;
  const std::size_t count = is_header ? 4 : 21;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = begin + 24 * i;
    if (block[at] == std::byte{0}) break;
    const auto offset = SPC_TRY(size_at(block, at, 12, "sparse map"));
    const auto size = SPC_TRY(size_at(block, at + 12, 12, "sparse map"));
    SPC_TRY(add_extent(extents, {.offset = offset, .size = size}));
  }
  return block[is_header ? 482 : 504] != std::byte{0};
}

Result<std::uint64_t> gnu_sparse_size(TarBlock header) {
  return size_at(header, 483, 12, "size of the sparse file");
}

}  // namespace spc
