#include "image/pull/local_source.hpp"

#include "base/format.hpp"
#include "base/sha256.hpp"
#include "image/pull/file_stream.hpp"

namespace spc {
namespace {

using Part = UserSourceLink::Part;

/// Where it lies, for the time in which the part is there.
FilePart bytes_of(const Part& part) { return {.file = part.file.get(), .offset = part.offset, .size = part.size}; }

constexpr char kWhoseFault[] = "the image is corrupt, or was changed while it was read";

Result<std::string> read_all(const Part& part, std::uint64_t limit) {
  SPC_TRY(check_file(bytes_of(part)));
  if (part.size > limit)
    return Error(ErrorKind::invalid, formatted("is larger than {} MiB", limit >> 20));
  std::string text(static_cast<std::size_t>(part.size), '\0');
  for (std::size_t at = 0; at < text.size();) {
    at += SPC_TRY(read_some(bytes_of(part), at, std::as_writable_bytes(std::span(text)).subspan(at)));
  }
  return text;
}

}  // namespace

std::string LocalSource::manifest_name(const std::optional<Digest>& digest) const {
  return "manifest " + in_quotes(digest ? digest->str() : name_);
}

Result<ImageSource::Document> LocalSource::get_top() {
  const auto part = SPC_TRY(link_.document());
  if (!part) return Error(ErrorKind::unavailable, "no process reads the user's files");
  Document document{.bytes = SPC_TRY_DURING(manifest_name({}), read_all(*part, kMaxManifest)), .media_type = part->media_type};
  document.digest = Sha256::of(document.bytes);
  return document;
}

Result<ImageSource::Document> LocalSource::get_manifest(const Digest& wanted) {
  const std::string what = manifest_name(wanted);
  const auto part = SPC_TRY_DURING(what, link_.blob(wanted));
  if (!part) return Error(ErrorKind::corrupt, what + ": is missing").hint("the image is incomplete");
  Document document{
      .bytes = SPC_TRY_DURING(what, read_all(*part, kMaxManifest)), .media_type = part->media_type, .digest = wanted};
  if (const Digest digest = Sha256::of(document.bytes); digest != wanted) {
    return Error(ErrorKind::corrupt, formatted("{}: has digest {} instead", what, digest.str()))
        .hint(kWhoseFault);
  }
  return document;
}

Result<std::string> LocalSource::get_config(const Descriptor& wanted) {
  const std::string what = "image configuration " + in_quotes(wanted.digest.str());
  const auto part = SPC_TRY_DURING(what, link_.blob(wanted.digest));
  if (!part) return Error(ErrorKind::corrupt, what + ": is missing").hint("the image is incomplete");
  auto bytes = SPC_TRY_DURING(what, read_all(*part, kMaxConfig));
  if (const Digest digest = Sha256::of(bytes); digest != wanted.digest) {
    return Error(ErrorKind::corrupt, formatted("{}: has digest {} instead", what, digest.str()))
        .hint(kWhoseFault);
  }
  return bytes;
}

std::unique_ptr<BlobStream> LocalSource::open_layer(const Descriptor& layer, FetchSink& sink) {
  const auto open = [this, layer]() -> Result<OpenedPart> {
    auto part = SPC_TRY(link_.blob(layer.digest));
    if (!part) return Error(ErrorKind::corrupt, "is missing");
    const std::uint64_t offset = part->offset, size = part->size;
    return OpenedPart{.file = std::move(part->file), .offset = offset, .size = size};
  };
  return std::make_unique<FileStream>(layer, sink, open, kWhoseFault);
}

}  // namespace spc
