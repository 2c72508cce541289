#include "convert/tar_reader.hpp"

#include <algorithm>
#include <limits>

#include "base/format.hpp"
#include "base/text.hpp"

namespace spc {

// --- tar header ---

namespace {

constexpr std::uint64_t kMaxNumber = std::numeric_limits<std::int64_t>::max();

Error bad(std::string_view what) { return Error(ErrorKind::corrupt, std::string(what)); }

/// Returns a field's text up to its first NUL.
std::string_view text_at(TarBlock block, std::size_t offset, std::size_t size) {
  const std::string_view field(reinterpret_cast<const char*>(block.data()) + offset, size);
  return field.substr(0, field.find('\0'));
}

struct Number {
  bool negative = false;
  std::uint64_t value = 0;
};

/// Reads octal digits between blanks, or GNU's base-256. Refuses forms on which readers differ:
/// blanks alone, a NUL before the digits, and other first bytes than GNU's two.
Result<Number> number_at(TarBlock block, std::size_t offset, std::size_t size, const char* what) {
  const auto field = block.subspan(offset, size);
  const auto first = static_cast<std::uint8_t>(field[0]);
  // valid only for times: stored as the earliest possible one
  if (first == 0xff) return Number{.negative = true};
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
  std::int32_t signed_sum = 0;  // for some old writers
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

/// Parses `[-]digits[.digits]`.
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

/// Refuses an empty path: in POSIX it removes the name, other readers ignore it.
Result<void> set_path(std::string& path, std::string_view value) {
  if (value.empty()) return bad("an extended header's path is empty");
  if (value.find('\0') != std::string_view::npos)
    return bad("an extended header's path contains NUL");
  path = value;
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
  // GNU's magic is "ustar  \0". There the bytes of the prefix have another meaning.
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
    return set_path(key == "path" ? path : link, value);
  } else if (key == "size") {
    size = SPC_TRY(parse_decimal(value));
    has_size = true;
  } else if (key == "mtime") {
    mtime = SPC_TRY(parse_time(value));
    has_mtime = true;
  }
  return {};  // ignore other records: owners, access times, comments
}

Result<void> PaxRecords::apply_sparse(std::string_view key, std::string_view value) {
  sparse = true;
  if (key == "major") {
    sparse_map_in_data = value == "1";
    if (!sparse_map_in_data && value != "0") return bad("the sparse file has an unknown format");
  } else if (key == "name") {
    return set_path(path, value);
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
      const auto offset = SPC_TRY(parse_decimal(next_part(value, ',')));
      const auto size_of_part = SPC_TRY(parse_decimal(next_part(value, ',')));
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

// --- tar reader ---

namespace {

/// Bytes. A path has at most 4 KiB, an attribute's value 64 KiB; this is enough for many.
constexpr std::uint64_t kMaxHeaderText = std::uint64_t{8} << 20;

std::uint64_t padding_behind(std::uint64_t size) {
  return (kTarBlock - size % kTarBlock) % kTarBlock;
}

Result<TarEntry::Kind> kind_of(const TarHeader& header) {
  switch (header.type) {
    case '\0':
      return header.name.ends_with('/') ? TarEntry::Kind::directory : TarEntry::Kind::file;  // V7
    case '0':
    case '7':
    case 'S': return TarEntry::Kind::file;
    case '1': return TarEntry::Kind::hard_link;
    case '2': return TarEntry::Kind::symlink;
    case '3':
    case '4': return TarEntry::Kind::device;
    case '5': return TarEntry::Kind::directory;
    case '6': return TarEntry::Kind::fifo;
    default:
      return bad(formatted("entry {}: unknown type {}", in_quotes(header.name),
                           in_quotes(std::string(1, header.type))));
  }
}

Result<void> check_extents(const TarEntry& entry) {
  std::uint64_t end = 0;
  std::uint64_t sum = 0;
  for (const Extent& extent : entry.extents) {
    // GNU tar begins each part at a block boundary, other readers read the parts consecutively. So
    // all parts but the last must be whole blocks, as GNU tar writes them.
    const bool misplaced = sum % kTarBlock != 0 && extent.size > 0;
    if (extent.offset < end || extent.offset > entry.size ||
        extent.size > entry.size - extent.offset || misplaced) {
      return bad(formatted("entry {}: the sparse file's map is wrong", in_quotes(entry.path)));
    }
    end = extent.offset + extent.size;
    sum += extent.size;
  }
  if (sum != entry.stored)
    return bad(
        formatted("entry {}: the sparse file's map does not fit its data", in_quotes(entry.path)));
  return {};
}

}  // namespace

Result<std::optional<TarBlock>> TarReader::block() {
  if (!piece_ || at_ == piece_.bytes().size()) {
    piece_ = SPC_TRY(queue_.next(PieceQueue::kParser));
    at_ = 0;
    if (!piece_) return std::optional<TarBlock>();
  }
  const auto rest = piece_.bytes().subspan(at_);
  if (rest.size() < kTarBlock) return bad("the archive ends in the middle of a block");
  at_ += kTarBlock;
  position_ += kTarBlock;
  return std::optional(rest.first<kTarBlock>());
}

Result<TarData> TarReader::read(std::uint64_t most) {
  if (data_ == 0) return TarData();
  if (!piece_ || at_ == piece_.bytes().size()) {
    piece_ = SPC_TRY(queue_.next(PieceQueue::kParser));
    at_ = 0;
    if (!piece_) return bad("the archive ends in the middle of a file");
  }
  const auto rest = piece_.bytes().subspan(at_);
  const auto count = static_cast<std::size_t>(std::min<std::uint64_t>({rest.size(), data_, most}));
  at_ += count;
  position_ += count;
  data_ -= count;
  return TarData{.bytes = rest.first(count), .piece = &piece_};
}

Result<void> TarReader::skip(std::uint64_t count) {
  const std::uint64_t saved = std::exchange(data_, count);
  while (data_ > 0) SPC_TRY(read(data_));
  data_ = saved;
  return {};
}

Result<std::string> TarReader::text(std::uint64_t size, const char* what) {
  if (size > kMaxHeaderText) return bad(std::string(what) + " is too long");
  std::string text;
  data_ = size;
  while (data_ > 0) {
    const auto data = SPC_TRY(read(data_));
    text.append(reinterpret_cast<const char*>(data.bytes.data()), data.bytes.size());
  }
  SPC_TRY(skip(padding_behind(size)));
  return text;
}

/// Reads the next header. Returns false at the end: two blocks of zeros, or one or none before the
/// end of file.
Result<bool> TarReader::header(TarHeader& header) {
  auto found = SPC_TRY(block());
  if (!found) return false;
  if (is_zero(*found)) {
    found = SPC_TRY(block());
    if (found && !is_zero(*found)) return bad("zero block between two entries");
    return false;
  }
  last_header_ = *found;
  header = SPC_TRY(TarHeader::parse(*found));
  return true;
}

Result<bool> TarReader::next(TarEntry& entry) {
  SPC_TRY(skip(std::exchange(data_, 0)));
  SPC_TRY(skip(std::exchange(padding_, 0)));

  TarHeader header;
  PaxRecords pax;
  std::string long_name;
  std::string long_link;
  bool has_pax = false;
  bool pending = false;
  // Collect extended headers until the header of an entry.
  for (;;) {
    if (!SPC_TRY(this->header(header))) {
      if (pending) return bad("the archive ends after an extended header");
      return false;
    }
    if (header.type == 'g') {
      // Global records (git writes a comment) are checked and otherwise ignored, as by other
      // container engines. tar applies them, so records that would change its result are refused.
      const auto records = SPC_TRY(text(header.size, "a global extended header"));
      const auto global = SPC_TRY(PaxRecords::parse(records));
      if (global.name_or_place())
        return bad("a global extended header sets a property of an entry");
      continue;
    }
    if (header.type == 'x') {
      if (has_pax) return bad("two extended headers for one entry");
      const auto records = SPC_TRY(text(header.size, "an extended header"));
      pax = SPC_TRY(PaxRecords::parse(records));
      has_pax = true;
    } else if (header.type == 'L' || header.type == 'K') {
      std::string& target = header.type == 'L' ? long_name : long_link;
      if (!target.empty()) return bad("two long names for one entry");
      target = SPC_TRY(text(header.size, "a long name"));
      target.resize(std::min(target.find('\0'), target.size()));
    } else {
      break;
    }
    pending = true;
  }
  SPC_TRY(fill(entry, header, pax, long_name, long_link));
  return true;
}

Result<void> TarReader::fill(TarEntry& entry, const TarHeader& header, PaxRecords& pax,
                             const std::string& long_name, const std::string& long_link) {
  entry.path = !pax.path.empty()    ? std::move(pax.path)
               : !long_name.empty() ? long_name
                                    : header.name;
  entry.target = !pax.link.empty()    ? std::move(pax.link)
                 : !long_link.empty() ? long_link
                                      : header.link;
  entry.kind = SPC_TRY(kind_of(header));
  // Some readers treat such a file as a directory. All readers do for a V7 header, unless another
  // header has its name.
  const bool slash_differs =
      header.type == '\0' && header.name.ends_with('/') != entry.path.ends_with('/');
  if (slash_differs || (entry.kind == TarEntry::Kind::file && entry.path.ends_with('/'))) {
    return bad(formatted("entry {}: it may be a file or a directory", in_quotes(entry.path)));
  }
  entry.mode = header.mode;
  entry.mtime = pax.has_mtime ? pax.mtime : header.mtime;
  entry.xattrs = std::move(pax.xattrs);
  entry.sparse = false;
  entry.extents.clear();
  entry.size = entry.stored = 0;
  // Only files have data; other types may have a meaningless size.
  if (entry.kind != TarEntry::Kind::file) return {};

  entry.size = entry.stored = pax.has_size ? pax.size : header.size;
  if (header.type == 'S') {
    SPC_TRY(read_gnu_sparse_map(entry));
  } else if (pax.sparse) {
    if (!pax.has_sparse_size)
      return bad(formatted("entry {}: the sparse file has no size", in_quotes(entry.path)));
    entry.sparse = true;
    entry.size = pax.sparse_size;
    entry.extents = std::move(pax.extents);
  }
  data_ = entry.stored;
  padding_ = padding_behind(entry.stored);
  if (pax.sparse_map_in_data) SPC_TRY(read_pax_sparse_map(entry));
  return entry.sparse ? check_extents(entry) : Result<void>();
}

Result<void> TarReader::read_gnu_sparse_map(TarEntry& entry) {
  entry.sparse = true;
  entry.size = SPC_TRY(gnu_sparse_size(last_header_));
  bool more = SPC_TRY(append_gnu_sparse_map(last_header_, true, entry.extents));
  while (more) {
    const auto found = SPC_TRY(block());
    if (!found) return bad("the archive ends in a sparse file's map");
    more = SPC_TRY(append_gnu_sparse_map(*found, false, entry.extents));
  }
  return {};
}

/// Format 1.0: decimal numbers, one per line, in whole blocks before the data: the number of parts,
/// then offset and size of each.
Result<void> TarReader::read_pax_sparse_map(TarEntry& entry) {
  const auto wrong = [&] {
    return bad(formatted("entry {}: the sparse file's map is wrong", in_quotes(entry.path)));
  };
  std::string line;
  std::optional<std::uint64_t> count;
  std::uint64_t offset = 0;
  bool has_offset = false;
  for (;;) {
    if (data_ < kTarBlock) return wrong();
    const auto found = SPC_TRY(block());
    if (!found) return bad("the archive ends in a sparse file's map");
    data_ -= kTarBlock;
    entry.stored -= kTarBlock;
    for (const auto byte : *found) {
      const char c = static_cast<char>(byte);
      if (c != '\n') {
        line += c;
        if (line.size() > 20) return wrong();
        continue;
      }
      const auto number = SPC_TRY(parse_decimal(line));
      line.clear();
      if (!count) {
        if (number > kMaxExtents) return wrong();
        count = number;
      } else if (has_offset) {
        entry.extents.push_back({.offset = offset, .size = number});
        has_offset = false;
      } else {
        offset = number;
        has_offset = true;
      }
      if (entry.extents.size() == *count) return {};  // the rest of the block is padding
    }
  }
}

Result<void> TarReader::drain() {
  for (;;) {
    piece_ = SPC_TRY(queue_.next(PieceQueue::kParser));
    if (!piece_) return {};
  }
}

}  // namespace spc
