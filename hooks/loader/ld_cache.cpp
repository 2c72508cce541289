#include "hooks/loader/ld_cache.hpp"

#include <elf.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/file.hpp"
#include "base/text.hpp"

namespace spc {
namespace {

constexpr std::string_view kOldMagic = "ld.so-1.7.0";
constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";
constexpr std::size_t kHeaderSize = 48;
constexpr std::size_t kEntrySize = 24;
constexpr std::size_t kOldHeaderSize = 16;
constexpr std::size_t kOldEntrySize = 12;
constexpr std::uint32_t kExtensionMagic = 0xeaa42174;
enum ExtensionTag : std::uint32_t { tag_generator = 0, tag_glibc_hwcaps = 1 };

/// Limit of a cache's size. A machine with everything installed has one or two MiB.
constexpr std::size_t kMostCacheBytes = 16 << 20;
constexpr std::size_t kLongestText = 4096;  ///< bytes of a path, PATH_MAX
constexpr std::size_t kMostHwcaps = 256;

Error damaged_cache(const char* what) {
  return {ErrorKind::invalid, std::string("read ld.so.cache: ") + what};
}

/// Returns the text at this offset of the file, which must end within it.
std::optional<std::string_view> cache_text_at(std::string_view file, std::size_t offset) {
  if (offset >= file.size()) return std::nullopt;
  const std::size_t most = std::min(kLongestText, file.size() - offset);
  const void* end = std::memchr(file.data() + offset, '\0', most);
  if (end == nullptr) return std::nullopt;
  return file.substr(
      offset, static_cast<std::size_t>(static_cast<const char*>(end) - file.data()) - offset);
}

/// Returns the part with the current format. All offsets are relative to its beginning.
std::string_view current_part(std::string_view file) {
  if (file.starts_with(kMagic)) return file;
  if (!file.starts_with(kOldMagic) || file.size() < kOldHeaderSize) return {};
  const std::size_t end = kOldHeaderSize + std::size_t{number_at(file, 12)} * kOldEntrySize;
  // The alignment is four if a 32-bit compiler built ldconfig.
  for (const std::size_t alignment : {8U, 4U}) {
    const std::size_t begin = (end + alignment - 1) & ~(alignment - 1);
    if (begin < file.size() && file.substr(begin).starts_with(kMagic)) return file.substr(begin);
  }
  return {};
}

bool is_decimal(char c) { return c >= '0' && c <= '9'; }

/// Parses digits like the loader: in 32 bits, with overflow.
std::int32_t take_digits(std::string_view& text) {
  std::uint32_t value = 0;
  for (; !text.empty() && is_decimal(text[0]); text.remove_prefix(1))
    value = value * 10 + static_cast<std::uint32_t>(text[0] - '0');
  return static_cast<std::int32_t>(value);
}

bool comes_before(const LdCache::Entry& a, const LdCache::Entry& b) {
  return compare_as_loader(a.soname, b.soname) > 0;
}

std::vector<LdCache::Entry> sorted(std::vector<LdCache::Entry> entries) {
  std::stable_sort(entries.begin(), entries.end(), comes_before);
  return entries;
}

/// The texts of a written cache, which follow its entries.
class CacheTexts {
 public:
  explicit CacheTexts(std::size_t begin) : begin_(begin) {}

  /// Returns the text's offset in the file.
  std::uint32_t add(std::string_view text) {
    const std::uint32_t offset = end();
    bytes_.append(text) += '\0';
    return offset;
  }
  /// Pads to a multiple of four, and returns the offset of the next text.
  std::uint32_t align() {
    bytes_.resize((begin_ + bytes_.size() + 3) / 4 * 4 - begin_);
    return end();
  }
  void append_bytes(const std::string& bytes) { bytes_ += bytes; }

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(bytes_.size()); }
  [[nodiscard]] std::uint32_t end() const {
    return static_cast<std::uint32_t>(begin_ + bytes_.size());
  }

 private:
  std::size_t begin_;
  std::string bytes_;
};

/// Returns the directory of extensions and their content. `hwcaps`: offsets of their names.
std::string extensions_text(std::uint32_t begin, const std::vector<std::uint32_t>& hwcaps,
                            const std::string& generator) {
  constexpr std::uint32_t kDirectorySize = 8 + 2 * 16;
  const std::uint32_t hwcaps_begin = begin + kDirectorySize;
  const auto hwcaps_size = static_cast<std::uint32_t>(4 * hwcaps.size());
  const auto generator_size = static_cast<std::uint32_t>(generator.size());
  std::string text;
  append_number(text, kExtensionMagic);
  append_number(text, std::uint32_t{2});
  for (const std::uint32_t value :
       {std::uint32_t{tag_generator}, 0U, hwcaps_begin + hwcaps_size, generator_size,
        std::uint32_t{tag_glibc_hwcaps}, 0U, hwcaps_begin, hwcaps_size}) {
    append_number(text, value);
  }
  for (const std::uint32_t name : hwcaps) append_number(text, name);
  return text + generator;
}

}  // namespace

int compare_as_loader(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const bool digits = is_decimal(a[0]);
    if (digits != is_decimal(b[0])) return digits ? 1 : -1;
    if (digits) {
      const auto left = take_digits(a);
      const auto right = take_digits(b);
      if (left != right) return left < right ? -1 : 1;
    } else if (a[0] != b[0]) {
      return a[0] < b[0] ? -1 : 1;
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return static_cast<int>(!a.empty()) - static_cast<int>(!b.empty());
}

std::optional<std::uint32_t> cache_flags_of(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64: return 0x0303;
    case EM_AARCH64: return 0x0a03;
    case EM_386: return 0x0003;
    case EM_ARM: return 0x0903;  // hard float
    case EM_PPC64: return 0x0503;
    default: return std::nullopt;
  }
}

Result<LdCache> LdCache::read(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return Error::from_errno(errno, "read ld.so.cache");
  if (!S_ISREG(status.st_mode)) return damaged_cache("not a regular file");
  if (status.st_size > static_cast<off_t>(kMostCacheBytes)) return damaged_cache("too large");
  return parse(SPC_TRY(read_file(fd, kMostCacheBytes)));
}

Result<LdCache> LdCache::parse(std::string bytes) {
  if (bytes.size() > kMostCacheBytes) return damaged_cache("too large");
  LdCache cache;
  cache.bytes_ = std::make_unique<const std::string>(std::move(bytes));
  const std::string_view file = current_part(*cache.bytes_);
  if (file.size() < kHeaderSize) return damaged_cache("no table of a known format");
  // Releases before 2.33 do not record the byte order (0), others write 2 for little-endian.
  constexpr unsigned kOwnByteOrder = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 2 : 3;
  const unsigned order = static_cast<unsigned char>(file[28]) & 3U;
  if (order != 0 && order != kOwnByteOrder) return damaged_cache("wrong byte order");
  const std::size_t count = number_at(file, 20);
  if (count > (file.size() - kHeaderSize) / kEntrySize) return damaged_cache("truncated entries");

  std::size_t all_texts = 0;
  cache.entries_.reserve(count);
  for (std::size_t at = kHeaderSize; at < kHeaderSize + count * kEntrySize; at += kEntrySize) {
    const auto soname = cache_text_at(file, number_at(file, at + 4));
    const auto path = cache_text_at(file, number_at(file, at + 8));
    if (!soname || !path) return damaged_cache("a name is out of bounds");
    // Many entries may share one long text.
    all_texts += soname->size() + path->size();
    if (all_texts > kMostCacheBytes) return damaged_cache("names too long");
    cache.entries_.push_back({*soname, *path, number_at(file, at), number_at(file, at + 12),
                              number_at<std::uint64_t>(file, at + 16)});
  }
  if (!std::is_sorted(cache.entries_.begin(), cache.entries_.end(), comes_before))
    cache.entries_ = sorted(std::move(cache.entries_));
  SPC_TRY(cache.parse_extensions(file));
  return cache;
}

/// Parses a directory of sections: u32 magic, u32 count, then for each u32 tag, flags, offset,
/// size.
Result<void> LdCache::parse_extensions(std::string_view file) {
  const std::size_t begin = number_at(file, 32);
  if (begin == 0) return {};
  if (begin > file.size() || file.size() - begin < 8 || number_at(file, begin) != kExtensionMagic)
    return damaged_cache("invalid extensions");
  const std::size_t count = number_at(file, begin + 4);
  if (count > 64 || file.size() - begin - 8 < count * 16)
    return damaged_cache("truncated extensions");
  for (std::size_t at = begin + 8; at < begin + 8 + count * 16; at += 16) {
    const std::size_t offset = number_at(file, at + 8);
    const std::size_t size = number_at(file, at + 12);
    if (offset > file.size() || size > file.size() - offset)
      return damaged_cache("an extension is out of bounds");
    if (number_at(file, at) == tag_generator)
      generator_ = file.substr(offset, std::min(size, kLongestText));
    if (number_at(file, at) != tag_glibc_hwcaps) continue;
    if (size / 4 > kMostHwcaps) return damaged_cache("too many processor types");
    for (std::size_t name = offset; name + 4 <= offset + size; name += 4) {
      const auto text = cache_text_at(file, number_at(file, name));
      if (!text) return damaged_cache("a name is out of bounds");
      hwcaps_.emplace_back(*text);
    }
  }
  return {};
}

std::span<const LdCache::Entry> LdCache::of_soname(std::string_view soname) const {
  const auto [begin, end] =
      std::equal_range(entries_.begin(), entries_.end(), Entry{soname, {}}, comes_before);
  return {begin, end};
}

const LdCache::Entry* LdCache::find(std::string_view soname, std::uint32_t flags) const {
  const auto entries = of_soname(soname);
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return entry.flags == flags; });
  return found == entries.end() ? nullptr : &*found;
}

std::string_view LdCache::hwcap_of(const Entry& entry) const {
  constexpr std::uint64_t kIsName = std::uint64_t{1} << 62;
  const auto index = static_cast<std::uint32_t>(entry.hwcap);
  return (entry.hwcap & kIsName) != 0 && index < hwcaps_.size() ? std::string_view(hwcaps_[index])
                                                                : std::string_view();
}

void LdCache::remove_if(const std::function<bool(const Entry&)>& condition) {
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), condition), entries_.end());
}

LdCache::Entry LdCache::owned(std::string soname, std::string path, std::uint32_t flags) {
  const std::string& own_soname = added_texts_.emplace_back(std::move(soname));
  const std::string& own_path = added_texts_.emplace_back(std::move(path));
  return {own_soname, own_path, flags};
}

void LdCache::add_first(std::string soname, std::string path, std::uint32_t flags) {
  first_.push_back(owned(std::move(soname), std::move(path), flags));
}

void LdCache::add_last(std::string soname, std::string path, std::uint32_t flags) {
  last_.push_back(owned(std::move(soname), std::move(path), flags));
}

std::vector<LdCache::Entry> LdCache::all_entries() const {
  const auto first = sorted(first_);
  const auto last = sorted(last_);
  // If sonames are equal, the entries of the first range precede.
  std::vector<Entry> with_first, all;
  std::ranges::merge(first, entries_, std::back_inserter(with_first), comes_before);
  std::ranges::merge(with_first, last, std::back_inserter(all), comes_before);
  return all;
}

std::string LdCache::serialize() const {
  const auto all = all_entries();
  CacheTexts texts(kHeaderSize + all.size() * kEntrySize);
  std::string entries;
  entries.reserve(all.size() * kEntrySize);
  for (const Entry& entry : all) {
    const std::uint32_t path = texts.add(entry.path);
    // Most paths end in the soname, which then needs no text of its own.
    const auto inside = static_cast<std::uint32_t>(entry.path.size() - entry.soname.size());
    const std::uint32_t soname =
        entry.path.ends_with(entry.soname) ? path + inside : texts.add(entry.soname);
    append_number(entries, entry.flags);
    append_number(entries, soname);
    append_number(entries, path);
    append_number(entries, entry.os_version);
    append_number(entries, entry.hwcap);
  }
  std::vector<std::uint32_t> hwcaps;
  for (const std::string& name : hwcaps_) hwcaps.push_back(texts.add(name));
  const std::uint32_t texts_size = texts.size();
  std::uint32_t extensions_begin = 0;
  if (!hwcaps.empty() || !generator_.empty()) {
    extensions_begin = texts.align();
    texts.append_bytes(extensions_text(extensions_begin, hwcaps, generator_));
  }

  std::string file(kMagic);
  file.reserve(texts.end());
  append_number(file, static_cast<std::uint32_t>(all.size()));
  append_number(file, texts_size);
  append_number(file, std::uint32_t{__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 2 : 3 << 24});
  append_number(file, extensions_begin);
  file.resize(kHeaderSize);
  return file + entries + texts.bytes();
}

}  // namespace spc
