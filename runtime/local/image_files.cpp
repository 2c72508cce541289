#include "local/image_files.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "convert/tar_reader.hpp"

namespace spc::user_source {

// --- temporary file ---

Result<UniqueFd> temporary_file(std::uint64_t size) {
  const char* own = std::getenv("TMPDIR");
  std::string tried;
  for (const std::string& directory :
       {std::string(own != nullptr ? own : ""), std::string("/tmp"), std::string("/var/tmp")}) {
    if (!directory.starts_with('/')) continue;
    UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    struct statvfs space {};
    const bool has_room = file && ::fstatvfs(file.get(), &space) == 0 &&
                          std::uint64_t{space.f_bavail} * space.f_frsize >= size;
    if (has_room) return file;
    tried += (tried.empty() ? "" : ", ") + directory;
  }
  return Error(ErrorKind::no_space,
               formatted("no space for {} MB in {}", size / 1'000'000 + 1, tried))
      .hint("set TMPDIR to a directory with enough space");
}

// --- directory files ---

Result<std::unique_ptr<DirectoryFiles>> DirectoryFiles::open(const std::string& path) {
  UniqueFd directory(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) {
    const int err = errno;
    auto error = Error::from_errno(err, "open " + in_quotes(path));
    if (err == ENOTDIR) return std::move(error).hint("for an archive write oci-archive:FILE");
    if (err == ENOENT) return std::move(error).hint("it must exist on every node of the step");
    return error;
  }
  return std::unique_ptr<DirectoryFiles>(new DirectoryFiles(std::move(directory), path));
}

Result<std::optional<FilePart>> DirectoryFiles::find(const std::string& name) const {
  UniqueFd file = open_resolved(directory_.get(), name.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY,
                                RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);
  if (!file) {
    const int err = errno;
    if (err == ENOENT) return std::optional<FilePart>();
    auto error = Error::from_errno(err, "open " + in_quotes(path_ + "/" + name));
    if (err == EXDEV) return std::move(error).hint("a link leads out of the directory");
    return error;
  }
  return std::optional(SPC_TRY(ordinary_file(std::move(file), in_quotes(path_ + "/" + name))));
}

// --- file part ---

namespace {

constexpr std::chrono::seconds kBetweenLines{15};

}  // namespace

Result<FilePart> ordinary_file(UniqueFd file, const std::string& what) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Error::from_errno(errno, "look at " + what);
  if (!S_ISREG(status.st_mode))
    return Error(ErrorKind::invalid, what + " is not a regular file")
        .hint("an image is a file, or an OCI layout: oci:DIR");
  return FilePart{.file = std::make_shared<const UniqueFd>(std::move(file)),
                  .size = static_cast<std::uint64_t>(status.st_size)};
}

Result<FilePart> open_ordinary_file(const std::string& path) {
  // O_NONBLOCK: opening a FIFO would block otherwise. Regular files ignore it.
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) {
    const int err = errno;
    auto error = Error::from_errno(err, "open " + in_quotes(path));
    if (err == ENOENT) return std::move(error).hint("it must exist on every node of the step");
    if (err == EACCES)
      return std::move(error).hint("it is opened with the user's permissions on the node");
    return error;
  }
  return ordinary_file(std::move(file), in_quotes(path));
}

Result<FilePart> file_with(std::string_view bytes, std::string media_type) {
  auto file = SPC_TRY(sealed_memory_file("spank-container image", bytes));
  return FilePart{.file = std::make_shared<const UniqueFd>(std::move(file)),
                  .size = bytes.size(),
                  .media_type = std::move(media_type)};
}

Result<std::size_t> read_at(const FilePart& part, std::uint64_t offset, std::span<std::byte> into) {
  if (offset >= part.size) return std::size_t{0};
  const auto wanted =
      static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), part.size - offset));
  std::size_t got = 0;
  while (got < wanted) {
    const ssize_t now = ::pread(part.file->get(), into.data() + got, wanted - got,
                                static_cast<off_t>(part.offset + offset + got));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return Error::from_errno(errno, "read");
    if (now == 0) return Error(ErrorKind::corrupt, "the file was truncated");
    got += static_cast<std::size_t>(now);
  }
  return got;
}

Result<std::string> read_part(const FilePart& part, std::size_t limit, const std::string& what) {
  if (part.size > limit)
    return Error(ErrorKind::invalid, formatted("{}: is larger than {} bytes", what, limit));
  std::string text(static_cast<std::size_t>(part.size), '\0');
  SPC_TRY_DURING(what, read_at(part, 0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<Digest> digest_of(const FilePart& part, const std::string& what, Log& log) {
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  Sha256 hash;
  std::chrono::steady_clock::time_point next_line{};
  for (std::uint64_t at = 0; at < part.size;) {
    if (const auto now = std::chrono::steady_clock::now(); now >= next_line) {
      next_line = now + kBetweenLines;
      log.write(LogLevel::info, formatted("reading {}: {} of {} MB", what, at / 1'000'000,
                                          (part.size + 999'999) / 1'000'000));
    }
    const std::size_t got = SPC_TRY(read_at(part, at, buffer));
    hash.update(std::span(buffer).first(got));
    at += got;
  }
  return hash.finish();
}

// --- decompression ---

namespace {

using Clock = std::chrono::steady_clock;

/// Bytes; no image is larger unpacked. A small file that unpacks to more is an attack on the disk.
constexpr std::uint64_t kMaxUnpacked = std::uint64_t{1} << 40;
constexpr std::uint64_t kUsualRatio = 3;
constexpr std::chrono::seconds kBetweenUnpackLines{15};

bool begins_with(const std::array<std::byte, 6>& bytes, std::string_view magic) {
  return std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

std::string in_mb(std::uint64_t bytes) {
  return std::to_string((bytes + 999'999) / 1'000'000) + " MB";
}

/// Writes the unpacked bytes to `output` and returns their number. They are not hashed, so the
/// queue's second reader only releases them.
Result<std::uint64_t> write_pieces(PieceQueue& queue, int output, const std::string& name,
                                   Log& log) {
  std::uint64_t written = 0;
  auto next_line = Clock::now() + kBetweenUnpackLines;
  for (;;) {
    const PieceRef piece = SPC_TRY(queue.next(PieceQueue::kParser));
    if (!piece) return written;
    SPC_TRY(write_all(output, piece.bytes()));
    written += piece.bytes().size();
    if (Clock::now() < next_line) continue;
    next_line = Clock::now() + kBetweenUnpackLines;
    log.write(LogLevel::info, formatted("unpacking {}: {}", name, in_mb(written)));
  }
}

Result<std::uint64_t> decompress_into(int input, int output, const std::string& name, Log& log) {
  PieceQueue queue;
  std::thread inflating([&] {
    auto done = decompress(input, queue, kMaxUnpacked);
    queue.finish(done ? std::nullopt : std::optional(std::move(done).error()));
  });
  std::thread unread([&] {
    for (;;) {
      const auto piece = queue.next(PieceQueue::kHasher);
      if (!piece || !*piece) return;
    }
  });
  auto written = write_pieces(queue, output, name, log);
  if (!written) queue.stop();
  inflating.join();
  unread.join();
  return written;
}

}  // namespace

Result<FilePart> unpacked(FilePart file, const std::string& name, Log& log) {
  std::array<std::byte, 6> magic{};
  SPC_TRY_DURING("read " + in_quotes(name), read_at(file, 0, magic));
  using namespace std::string_view_literals;
  for (const auto& [bytes, format] : {std::pair("\xfd"
                                                "7zXZ\0"sv,
                                                "xz"),
                                      std::pair("BZh"sv, "bzip2")}) {
    if (begins_with(magic, bytes)) {
      return Error(ErrorKind::invalid, formatted("{} is compressed with {}, which is not supported",
                                                 in_quotes(name), format))
          .hint("unpack it, or compress it with gzip or zstd");
    }
  }
  if (!begins_with(magic, "\x1f\x8b"sv) && !begins_with(magic, "\x28\xb5\x2f\xfd"sv)) return file;

  log.write(LogLevel::info,
            formatted("unpacking {}: {} (an archive that is not compressed starts faster)", name,
                      in_mb(file.size)));
  const std::string step = "unpack " + in_quotes(name);
  UniqueFd output = SPC_TRY_DURING(step, temporary_file(file.size * kUsualRatio));
  if (::lseek(file.file->get(), 0, SEEK_SET) != 0) return Error::from_errno(errno, step);
  const std::uint64_t size =
      SPC_TRY_DURING(step, decompress_into(file.file->get(), output.get(), name, log));
  return FilePart{.file = std::make_shared<const UniqueFd>(std::move(output)), .size = size};
}

// --- tar files ---

namespace {

constexpr std::size_t kMaxEntries = 1'000'000;
constexpr std::uint64_t kMaxHeaderText = 1 << 20;
constexpr int kMaxLinks = 8;

Error bad(const std::string& why) { return {ErrorKind::corrupt, why}; }

Error truncated() { return bad("the archive is truncated").hint("copy or write it again"); }

std::uint64_t with_padding(std::uint64_t size) {
  return (size + kTarBlock - 1) / kTarBlock * kTarBlock;
}

/// Normalizes a path: `./a//b/` is `a/b`. A ".." removes the component before it.
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

    // The header is that of an entry: combine it with the extended headers before it.
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
    // a sparse file's stored bytes are not its content
    if (header.type == 'S' || pax.sparse) entry.is_file = false;
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
