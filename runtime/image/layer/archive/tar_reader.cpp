#include "image/layer/archive/tar_reader.hpp"

#include <algorithm>

#include "base/format.hpp"

namespace spc {
namespace {

/// A path has at most 4 KiB, a value of an attribute 64 KiB; this leaves room for many.
constexpr std::uint64_t kMaxHeaderText = std::uint64_t{8} << 20;

Error bad(std::string_view what) { return Error(ErrorKind::corrupt, std::string(what)); }

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
    // GNU tar begins each part with a block of its own, other readers take the parts as they follow
    // each other: all parts but the last must be whole blocks, as GNU tar writes them.
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

/// The next header; false at the end: two blocks of zeros, or one or none before the end of file.
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
  for (;;) {
    if (!SPC_TRY(this->header(header))) {
      if (pending) return bad("the archive ends after an extended header");
      return false;
    }
    if (header.type == 'g') {
      // Global records (git writes a comment) are checked and otherwise ignored, as other container
      // engines do. tar is none of these: what it would see differently is refused.
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
  // To some readers such a file is a directory; a V7 one is that to all, unless another header has
  // its name.
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
  // Only files have data; other types may state a size and mean nothing by it.
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

/// Format 1.0: decimal numbers, one a line, in whole blocks before the data: how many parts, then
/// offset and size of each.
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
