#include "image/user_source/tar_files.hpp"

#include <algorithm>
#include <array>

#include "image/layer/archive/tar_header.hpp"

namespace spc::user_source {
namespace {

constexpr std::size_t kMaxEntries = 1'000'000;
constexpr std::uint64_t kMaxHeaderText = 1 << 20;
constexpr int kMaxLinks = 8;

Error bad(const std::string& why) { return {ErrorKind::corrupt, why}; }

Error truncated() { return bad("the archive is truncated").hint("copy or write it again"); }

std::uint64_t with_padding(std::uint64_t size) {
  return (size + kTarBlock - 1) / kTarBlock * kTarBlock;
}

/// `./a//b/` is `a/b`; a ".." takes back what stands before it and nothing more.
std::string clean(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const std::size_t slash = path.find('/');
    const std::string_view component = path.substr(0, slash);
    path.remove_prefix(slash == std::string_view::npos ? path.size() : slash + 1);
    if (component.empty() || component == ".") continue;
    if (component == "..") {
      out.erase(out.rfind('/') == std::string::npos ? 0 : out.rfind('/'));
      continue;
    }
    if (!out.empty()) out += '/';
    out += component;
  }
  return out;
}

std::string directory_of(const std::string& name) {
  const std::size_t slash = name.rfind('/');
  return slash == std::string::npos ? std::string() : name.substr(0, slash);
}

}  // namespace

Result<std::unique_ptr<TarFiles>> TarFiles::index(FilePart archive, const std::string& name) {
  std::unique_ptr<TarFiles> files(new TarFiles(std::move(archive)));
  SPC_TRY_DURING("read " + in_quotes(name), files->read_headers());
  return files;
}

Result<std::string> TarFiles::text_at(std::uint64_t offset, std::uint64_t size) const {
  if (size > kMaxHeaderText) return bad("an extended header has more than 1 MiB");
  if (size > archive_.size - offset) return truncated();
  std::string text(static_cast<std::size_t>(size), '\0');
  SPC_TRY(read_at(archive_, offset, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<void> TarFiles::read_headers() {
  std::array<std::byte, kTarBlock> block;
  PaxRecords pax;
  std::string long_name;
  std::string long_link;
  std::size_t count = 0;
  for (std::uint64_t at = 0; at < archive_.size;) {
    if (SPC_TRY(read_at(archive_, at, block)) < block.size()) return truncated();
    if (is_zero(block)) break;
    if (++count > kMaxEntries)
      return Error(ErrorKind::refused, "the archive has more than a million entries");
    auto parsed = TarHeader::parse(block);
    if (!parsed && at == 0)
      return Error(ErrorKind::invalid,
                   "it is neither a tar archive nor compressed with gzip or zstd");
    TarHeader header = SPC_TRY(std::move(parsed));
    at += kTarBlock;

    if (header.type == 'x' || header.type == 'g' || header.type == 'L' || header.type == 'K') {
      std::string text = SPC_TRY(text_at(at, header.size));
      at += with_padding(header.size);
      if (header.type == 'x') pax = SPC_TRY(PaxRecords::parse(text));
      text.resize(std::min(text.find('\0'), text.size()));
      if (header.type == 'L') long_name = std::move(text);
      if (header.type == 'K') long_link = std::move(text);
      continue;
    }
    const std::string name = clean(!pax.path.empty()    ? pax.path
                                   : !long_name.empty() ? long_name
                                                        : header.name);
    const std::string link = !pax.link.empty()    ? pax.link
                             : !long_link.empty() ? long_link
                                                  : header.link;
    const bool is_file =
        header.type == '0' || header.type == '\0' || header.type == '7' || header.type == 'S';
    Entry entry{.offset = at,
                .size = is_file ? (pax.has_size ? pax.size : header.size) : 0,
                .is_file = is_file};
    if (header.type == '1') entry.link = clean(link);
    if (header.type == '2')
      entry.link = clean(link.starts_with('/') ? link : directory_of(name) + "/" + link);
    if (entry.size > archive_.size - at) return truncated();
    if (header.type == 'S' || pax.sparse) entry.is_file = false;  // its data are not its bytes
    at += with_padding(entry.size);
    entries_.insert_or_assign(name, std::move(entry));
    pax = PaxRecords();
    long_name.clear();
    long_link.clear();
  }
  return {};
}

Result<std::optional<FilePart>> TarFiles::find(const std::string& name) const {
  std::string wanted = clean(name);
  for (int links = 0; links <= kMaxLinks; ++links) {
    const auto found = entries_.find(wanted);
    if (found == entries_.end()) return std::optional<FilePart>();
    const Entry& entry = found->second;
    if (entry.is_file) {
      return std::optional(FilePart{
          .file = archive_.file, .offset = archive_.offset + entry.offset, .size = entry.size});
    }
    if (entry.link.empty())
      return Error(ErrorKind::invalid, in_quotes(name) + " in the archive is not a regular file");
    wanted = entry.link;
  }
  return bad(in_quotes(name) + " in the archive is a dangling link");
}

bool TarFiles::has(const std::string& directory) const {
  if (entries_.find(directory) != entries_.end()) return true;
  const auto below = entries_.lower_bound(directory + "/");
  return below != entries_.end() && below->first.starts_with(directory + "/");
}

}  // namespace spc::user_source
