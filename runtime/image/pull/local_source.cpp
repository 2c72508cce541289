#include "image/pull/local_source.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/format.hpp"
#include "base/sha256.hpp"

namespace spc {
namespace {

using Part = UserSourceLink::Part;

constexpr std::size_t kChunk = std::size_t{256} << 10;
constexpr int kChunksAtOnce = 8;  // then the other layers get their turn
constexpr char kWhoseFault[] = "the image is corrupt, or was changed while it was read";

/// Reading anything but an ordinary file could wait for ever.
Result<void> check_file(const Part& part) {
  struct stat status {};
  if (::fstat(part.file.get(), &status) != 0) return Error::from_errno(errno, "look at the file");
  if (!S_ISREG(status.st_mode)) return Error(ErrorKind::invalid, "is not a regular file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (part.offset > size || part.size > size - part.offset)
    return Error(ErrorKind::corrupt, "is not complete");
  return {};
}

/// At most `into.size()` bytes from `at` of the part on.
Result<std::size_t> read_some(const Part& part, std::uint64_t at, std::span<std::byte> into) {
  const auto wanted =
      static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), part.size - at));
  for (;;) {
    const ssize_t got =
        ::pread(part.file.get(), into.data(), wanted, static_cast<off_t>(part.offset + at));
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) return Error(ErrorKind::corrupt, "was truncated while it was read");
    if (errno != EINTR) return Error::from_errno(errno, "read it");
  }
}

Result<std::string> read_all(const Part& part, std::uint64_t limit) {
  SPC_TRY(check_file(part));
  if (part.size > limit)
    return Error(ErrorKind::invalid, formatted("is larger than {} MiB", limit >> 20));
  std::string text(static_cast<std::size_t>(part.size), '\0');
  for (std::size_t at = 0; at < text.size();) {
    at += SPC_TRY(read_some(part, at, std::as_writable_bytes(std::span(text)).subspan(at)));
  }
  return text;
}

/// A layer read from its part of a file, a few chunks at each turn.
class FileStream final : public BlobStream {
 public:
  FileStream(UserSourceLink& link, Descriptor layer, FetchSink& sink)
      : link_(link), layer_(std::move(layer)), sink_(sink) {}

  void start() override {
    if (auto opened = open(); !opened) fail(std::move(opened).error());
  }
  /// A file is always readable: whoever waits for it goes on at once.
  void watch(std::vector<pollfd>& descriptors) const override {
    if (part_) descriptors.push_back({.fd = part_->file.get(), .events = POLLIN, .revents = 0});
  }
  void advance() override {
    for (int i = 0; i < kChunksAtOnce && !finished() && !paused_; ++i) {
      if (auto moved = move_chunk(); !moved) fail(std::move(moved).error());
    }
  }
  void resume() override { paused_ = false; }
  [[nodiscard]] bool finished() const override { return failed_ || sent_ == layer_.size; }
  Result<void> outcome() override { return failed_ ? Result<void>(*failed_) : Result<void>(); }
  [[nodiscard]] const char* whose_fault() const override { return kWhoseFault; }

 private:
  Result<void> open() {
    auto part = SPC_TRY(link_.blob(layer_.digest));
    if (!part) return Error(ErrorKind::corrupt, "is missing");
    SPC_TRY(check_file(*part));
    if (part->size != layer_.size) {
      return Error(ErrorKind::corrupt,
                   formatted("has {} bytes instead of {}", part->size, layer_.size));
    }
    part_ = std::move(part);
    return {};
  }

  Result<void> move_chunk() {
    if (from_ == chunk_.size()) {
      chunk_.resize(kChunk);
      chunk_.resize(SPC_TRY(read_some(*part_, sent_, chunk_)));
      from_ = 0;
    }
    const auto bytes = std::span(chunk_).subspan(from_);
    if (sink_.take(bytes) == HttpHandler::Take::later) {
      paused_ = true;
      return {};
    }
    sent_ += bytes.size();
    from_ = chunk_.size();
    return {};
  }

  void fail(Error error) {
    failed_ = std::move(error).during("layer " + in_quotes(layer_.digest.str())).hint(kWhoseFault);
  }

  UserSourceLink& link_;
  Descriptor layer_;
  FetchSink& sink_;
  std::optional<Part> part_;
  std::vector<std::byte> chunk_;
  std::size_t from_ = 0;  // what of the chunk the sink does not have
  std::uint64_t sent_ = 0;
  bool paused_ = false;
  std::optional<Error> failed_;
};

}  // namespace

std::string LocalSource::manifest_name(const std::optional<Digest>& digest) const {
  return "manifest " + in_quotes(digest ? digest->str() : name_);
}

Result<ImageSource::Document> LocalSource::get_top() {
  const auto part = SPC_TRY(link_.document());
  if (!part) return Error(ErrorKind::unavailable, "no process reads the user's files");
  Document document{.bytes = SPC_TRY_DURING(manifest_name({}), read_all(*part, kMaxManifest)),
                    .media_type = part->media_type};
  document.digest = Sha256::of(document.bytes);
  return document;
}

Result<ImageSource::Document> LocalSource::get_manifest(const Digest& wanted) {
  const std::string what = manifest_name(wanted);
  const auto part = SPC_TRY_DURING(what, link_.blob(wanted));
  if (!part)
    return Error(ErrorKind::corrupt, what + ": is missing").hint("the image is incomplete");
  Document document{.bytes = SPC_TRY_DURING(what, read_all(*part, kMaxManifest)),
                    .media_type = part->media_type,
                    .digest = wanted};
  if (const Digest digest = Sha256::of(document.bytes); digest != wanted) {
    return Error(ErrorKind::corrupt, formatted("{}: has digest {} instead", what, digest.str()))
        .hint(kWhoseFault);
  }
  return document;
}

Result<std::string> LocalSource::get_config(const Descriptor& wanted) {
  const std::string what = "image configuration " + in_quotes(wanted.digest.str());
  const auto part = SPC_TRY_DURING(what, link_.blob(wanted.digest));
  if (!part)
    return Error(ErrorKind::corrupt, what + ": is missing").hint("the image is incomplete");
  auto bytes = SPC_TRY_DURING(what, read_all(*part, kMaxConfig));
  if (const Digest digest = Sha256::of(bytes); digest != wanted.digest) {
    return Error(ErrorKind::corrupt, formatted("{}: has digest {} instead", what, digest.str()))
        .hint(kWhoseFault);
  }
  return bytes;
}

std::unique_ptr<BlobStream> LocalSource::open_layer(const Descriptor& layer, FetchSink& sink) {
  return std::make_unique<FileStream>(link_, layer, sink);
}

}  // namespace spc
