#include "export/push.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include "base/format.hpp"
#include "base/text.hpp"

namespace spc {

// --- registry push ---

namespace {

// Bytes of one upload request, and so the maximum lost if a connection breaks and the registry
// discards the unfinished request. Smaller blobs are sent by one request, which all registries
// accept.
constexpr std::uint64_t kPiece = 32 << 20;
constexpr int kMaxTries = 4;

class NoSink final : public FetchSink {
 public:
  HttpHandler::Take take(std::span<const std::byte>) override { return HttpHandler::Take::taken; }
};

std::string named(const Descriptor& blob) { return "blob " + blob.digest.str(); }

/// Returns the number of bytes that the registry has, from `Range: 0-LAST`.
std::optional<std::uint64_t> bytes_in(std::string_view range) {
  if (range.starts_with("bytes=")) range.remove_prefix(6);
  if (!range.starts_with("0-")) return std::nullopt;
  range.remove_prefix(2);
  const auto last = parse_number<std::uint64_t>(range);
  return last ? std::optional(*last + 1) : std::nullopt;
}

}  // namespace

/// State of one blob's upload.
struct RegistryPush::Upload {
  const Descriptor& blob;
  const user_source::FilePart& bytes;
  const std::function<void(std::uint64_t)>& meter;
  std::string url;         ///< location for the next request
  std::uint64_t done = 0;  ///< bytes that the registry has
  bool whole = false;      ///< the registry accepts no pieces

  [[nodiscard]] HttpUpload piece(std::uint64_t size) const {
    HttpUpload piece{.file = bytes.file->get(),
                     .offset = bytes.offset + done,
                     .size = size,
                     .type = "application/octet-stream",
                     .range = size == 0 ? "" : formatted("{}-{}", done, done + size - 1),
                     .meter = {}};
    if (meter) piece.meter = [this](std::uint64_t sent) { meter(done + sent); };
    return piece;
  }
};

Result<HttpHead> RegistryPush::send(FetchRequest request) {
  request.max_size = 1 << 20;
  NoSink sink;
  Fetch fetch(session_, std::move(request), sink);
  fetch.start();
  while (!fetch.finished()) {
    SPC_TRY(session_.http.wait(std::chrono::milliseconds(100)));
    fetch.advance();
  }
  return fetch.result();
}

Result<bool> RegistryPush::has_blob(const Descriptor& blob) {
  const auto head =
      send({.path = "blobs/" + blob.digest.str(), .what = named(blob), .head = true, .accept = {}});
  if (head) return true;
  if (head.error().kind() == ErrorKind::not_found) return false;
  return head.error();
}

/// Returns the absolute upload location; registries may send a path only. Refuses an unencrypted
/// location unless the registry itself is used without encryption.
Result<std::string> RegistryPush::location_of(const HttpHead& head) const {
  const std::string& base = session_.endpoints.back().base_url;
  std::string location(head.header("location"));
  if (location.starts_with('/')) location = base + location;
  const std::string origin = origin_of(location);
  if (origin.empty()) return Error(ErrorKind::unavailable, "does not say where to send a blob");
  if (base.starts_with("https:") && !origin.starts_with("https:")) {
    return Error(ErrorKind::refused,
                 formatted("wants the blob at {}, which is not encrypted", in_quotes(origin)));
  }
  return location;
}

Result<std::string> RegistryPush::begin_upload(const Descriptor& blob) {
  const auto head = SPC_TRY(send({.path = "blobs/uploads/",
                                  .what = named(blob),
                                  .accept = {},
                                  .method = "POST",
                                  .upload = {},
                                  .url = {}}));
  return location_of(head);
}

Result<bool> RegistryPush::mount(const Descriptor& blob, const std::string& repository) {
  const std::string path =
      formatted("blobs/uploads/?mount={}&from={}", blob.digest.str(), repository);
  const auto head = send(
      {.path = path, .what = named(blob), .accept = {}, .method = "POST", .upload = {}, .url = {}});
  if (head) return head->status == 201;
  // Without read access to that repository the blob is uploaded.
  if (head.error().kind() == ErrorKind::refused || head.error().kind() == ErrorKind::not_found)
    return false;
  return head.error();
}

/// Sends the rest of a blob: all but the last piece by PATCH, the last one by PUT with the digest.
Result<void> RegistryPush::send_rest(Upload& upload) {
  FetchRequest request{.path = {},
                       .what = named(upload.blob),
                       .accept = {},
                       .method = "PATCH",
                       .upload = {},
                       .url = {},
                       .once = true};
  while (!upload.whole && upload.bytes.size - upload.done > kPiece) {
    request.upload = upload.piece(kPiece);
    request.url = upload.url;
    const auto head = SPC_TRY(send(request));
    upload.url = SPC_TRY(location_of(head));
    upload.done = bytes_in(head.header("range")).value_or(upload.done + kPiece);
    if (upload.done > upload.bytes.size)
      return Error(ErrorKind::unavailable, "says that it has more than was sent");
  }
  request.method = "PUT";
  request.upload = upload.piece(upload.bytes.size - upload.done);
  if (upload.done == 0) request.upload.range.clear();
  request.url = upload.url + (upload.url.find('?') == std::string::npos ? "?" : "&") +
                "digest=" + upload.blob.digest.str();
  SPC_TRY(send(request));
  return {};
}

/// Determines the offset and location after a failure. The registry may have discarded the upload,
/// or completed it although the response was lost.
Result<void> RegistryPush::find_place(Upload& upload) {
  const auto head = send({.path = {},
                          .what = named(upload.blob),
                          .accept = {},
                          .method = "GET",
                          .upload = {},
                          .url = upload.url});
  if (head) {
    // Registries report an empty upload as 0-0 or without a range.
    const auto there = bytes_in(head->header("range")).value_or(0);
    upload.done = there <= 1 || there > upload.bytes.size ? 0 : there;
    if (const auto next = location_of(*head)) upload.url = *next;
    return {};
  }
  if (head.error().kind() != ErrorKind::not_found) return head.error();
  if (SPC_TRY(has_blob(upload.blob))) {
    upload.done = upload.bytes.size;
    upload.url.clear();
    return {};
  }
  upload.url = SPC_TRY(begin_upload(upload.blob));
  upload.done = 0;
  return {};
}

Result<void> RegistryPush::upload(const Descriptor& blob, const user_source::FilePart& bytes,
                                  const std::function<void(std::uint64_t)>& meter) {
  Upload upload{.blob = blob, .bytes = bytes, .meter = meter, .url = {}, .done = 0};
  upload.url = SPC_TRY(begin_upload(blob));
  std::uint64_t most = 0;
  bool is_lost = false;
  for (int tries = 1;; ++tries) {
    Result<void> sent = is_lost ? find_place(upload) : Result<void>();
    if (sent && upload.url.empty()) return {};
    if (sent) sent = send_rest(upload);
    if (!sent && sent.error().kind() == ErrorKind::refused && upload.done == 0 && !upload.whole &&
        bytes.size > kPiece) {
      upload.whole = true;  // some registries accept a blob only as one PUT
      upload.url = SPC_TRY(begin_upload(blob));
      is_lost = false;
      continue;
    }
    if (sent || sent.error().kind() != ErrorKind::unavailable) return sent;
    if (upload.done > most) tries = 1;
    most = std::max(most, upload.done);
    if (tries == kMaxTries)
      return std::move(sent).error().hint(formatted("gave up after {} attempts", tries));
    session_.log.write(LogLevel::info, sent.error().message() + ": going on from there");
    const auto due = std::chrono::steady_clock::now() +
                     std::chrono::milliseconds(250) * (1 << (2 * (tries - 1)));
    while (std::chrono::steady_clock::now() < due)
      SPC_TRY(session_.http.wait(std::chrono::milliseconds(50)));
    is_lost = true;
  }
}

Result<void> RegistryPush::put_manifest(const std::string& text, const std::string& media_type,
                                        const std::string& tag) {
  const auto file = SPC_TRY(user_source::file_with(text, media_type));
  const HttpUpload upload{.file = file.file->get(),
                          .offset = 0,
                          .size = text.size(),
                          .type = media_type,
                          .range = {},
                          .meter = {}};
  SPC_TRY(send({.path = "manifests/" + tag,
                .what = "manifest " + in_quotes(tag),
                .accept = {},
                .method = "PUT",
                .upload = upload,
                .url = {}}));
  return {};
}

// --- image push ---

namespace {

/// Returns the blobs to push, layers first, so that the repository never has a configuration
/// without its layers.
std::vector<Descriptor> blobs_of(const Manifest& manifest) {
  std::vector<Descriptor> blobs;
  std::set<Digest> seen;
  for (const Descriptor& layer : manifest.layers) {
    if (seen.insert(layer.digest).second) blobs.push_back(layer);
  }
  if (seen.insert(manifest.config.digest).second) blobs.push_back(manifest.config);
  return blobs;
}

}  // namespace

Result<PushCounts> push_image(PushSource& from, RegistrySession& session, const std::string& tag,
                              const PushMeter& meter) {
  RegistryPush to(session);
  const PushedManifest& manifest = from.manifest();
  const auto blobs = blobs_of(manifest.parsed);
  const std::string neighbour = from.repository_at(session.registry);
  PushCounts counts;
  for (const Descriptor& blob : blobs) counts.total_bytes += blob.size;
  std::uint64_t done = 0;
  for (const Descriptor& blob : blobs) {
    if (meter) meter(done, counts.total_bytes);
    if (SPC_TRY(to.has_blob(blob))) {
      ++counts.there;
    } else if (!neighbour.empty() && neighbour != session.repository &&
               SPC_TRY(to.mount(blob, neighbour))) {
      ++counts.mounted;
    } else {
      const auto bytes = SPC_TRY(from.blob(blob));
      if (bytes.size != blob.size)
        return Error(ErrorKind::corrupt,
                     "blob " + blob.digest.str() + ": has another size than stated");
      SPC_TRY(to.upload(blob, bytes, [&](std::uint64_t sent) {
        if (meter) meter(done + sent, counts.total_bytes);
      }));
      ++counts.sent;
      counts.sent_bytes += blob.size;
    }
    done += blob.size;
  }
  SPC_TRY(to.put_manifest(manifest.text, manifest.media_type, tag));
  return counts;
}

}  // namespace spc
