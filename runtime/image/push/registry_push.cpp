#include "image/push/registry_push.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/format.hpp"

namespace spc {
namespace {

// What is lost at most when a connection breaks and the registry keeps nothing of a request that
// did not end. Smaller blobs are sent in one piece, as all registries take them.
constexpr std::uint64_t kPiece = 32 << 20;
constexpr int kMaxTries = 4;

class NoSink final : public FetchSink {
 public:
  HttpHandler::Take take(std::span<const std::byte>) override { return HttpHandler::Take::taken; }
};

std::string named(const Descriptor& blob) { return "blob " + blob.digest.str(); }

/// How many bytes the registry has: `Range: 0-LAST`.
std::optional<std::uint64_t> bytes_in(std::string_view range) {
  if (range.starts_with("bytes=")) range.remove_prefix(6);
  if (!range.starts_with("0-")) return std::nullopt;
  range.remove_prefix(2);
  std::uint64_t last = 0;
  const auto [end, error] = std::from_chars(range.data(), range.data() + range.size(), last);
  if (error != std::errc{} || end != range.data() + range.size()) return std::nullopt;
  return last + 1;
}

}  // namespace

/// A blob on its way.
struct RegistryPush::Upload {
  const Descriptor& blob;
  const user_source::FilePart& bytes;
  const std::function<void(std::uint64_t)>& meter;
  std::string url;         ///< where the registry takes what comes next
  std::uint64_t done = 0;  ///< bytes that it has
  bool whole = false;      ///< the registry takes no pieces

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

/// A registry may give a path only. An upload is never sent to where it could be read on the way if
/// the registry itself is not spoken with so.
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
  // Who may not read there sends it.
  if (head.error().kind() == ErrorKind::refused || head.error().kind() == ErrorKind::not_found)
    return false;
  return head.error();
}

/// What is left of a blob: all but the last piece by PATCH, the last one with the digest.
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

/// Where to go on after a failure. The registry may have forgotten the upload, or ended it without
/// our having heard.
Result<void> RegistryPush::find_place(Upload& upload) {
  const auto head = send({.path = {},
                          .what = named(upload.blob),
                          .accept = {},
                          .method = "GET",
                          .upload = {},
                          .url = upload.url});
  if (head) {
    // An empty upload is told as 0-0 or without a range.
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
      upload.whole = true;  // some registries take a blob by one PUT only
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

}  // namespace spc
