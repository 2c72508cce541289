#include "image/pull/repository.hpp"

#include "base/format.hpp"
#include "base/sha256.hpp"

namespace spc {
namespace {

/// Keeps what comes in memory; Fetch bounds it.
class TextSink final : public FetchSink {
 public:
  HttpHandler::Take take(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return HttpHandler::Take::taken;
  }
  std::string text;
};

Error wrong_digest(const std::string& what, const Digest& got, const Digest& expected) {
  return std::move(Error(ErrorKind::corrupt, formatted("{}: has digest {} instead of {}", what,
                                                       got.str(), expected.str()))
                       .hint("the registry or a proxy changed it"));
}

}  // namespace

Repository::Repository(HttpClient& http, Log& log, const ImageReference& reference, const Config& config, AskUser ask_user)
    : reference_(reference),
      shown_(reference.canonical()),
      mirrors_know_tags_(config.registry(reference.registry).mirror_tags),
      session_{.http = http,
               .log = log,
               .registry = reference.registry,
               .repository = reference.repository,
               .endpoints = endpoints_of(reference, config),
               .login_servers = config.registry(reference.registry).login_servers,
               .ask_user = std::move(ask_user),
               .user_first = !reference.user.empty()} {}

Result<HttpHead> Repository::run(Fetch& fetch) {
  fetch.start();
  while (!fetch.finished()) {
    SPC_TRY(session_.http.wait(std::chrono::milliseconds(100)));
    fetch.advance();
  }
  return fetch.result();
}

Result<Digest> Repository::ask_digest(const std::string& tag_or_digest) {
  TextSink sink;
  Fetch fetch(session_,
              {.path = "manifests/" + tag_or_digest,
               .what = name_of_manifest(tag_or_digest),
               .head = true,
               .accept = kManifestAccept,
               .not_from_mirrors = !mirrors_know_tags_ && !Digest::parse(tag_or_digest)},
              sink);
  const HttpHead head = SPC_TRY(run(fetch));
  return Digest::parse(head.header("docker-content-digest"));
}

std::string Repository::name_of_manifest(const std::string& tag_or_digest) const {
  if (tag_or_digest == reference_.tag_or_digest()) return "manifest " + in_quotes(shown_);
  return "manifest " + in_quotes(reference_.repository + "@" + tag_or_digest);
}

std::string Repository::manifest_name(const std::optional<Digest>& digest) const {
  return name_of_manifest(digest ? digest->str() : reference_.tag_or_digest());
}

Result<ImageSource::Document> Repository::get_top() {
  if (!reference_.digest && !mirrors_know_tags_ && session_.endpoints.size() > 1) {
    // The registry says which digest, the mirrors have the bytes.
    const auto digest = ask_digest(reference_.tag);
    if (digest) return get_document(digest->str(), *digest);
    if (digest.error().kind() != ErrorKind::invalid) return digest.error();
  }
  return get_document(reference_.tag_or_digest(), reference_.digest);
}

Result<ImageSource::Document> Repository::get_manifest(const Digest& wanted) { return get_document(wanted.str(), wanted); }

Result<ImageSource::Document> Repository::get_document(const std::string& tag_or_digest, const std::optional<Digest>& expected) {
  const std::string what = name_of_manifest(tag_or_digest);
  for (;;) {
    TextSink sink;
    Fetch fetch(session_,
                {.path = "manifests/" + tag_or_digest,
                 .what = what,
                 .accept = kManifestAccept,
                 .max_size = kMaxManifest,
                 .not_from_mirrors = !expected && !mirrors_know_tags_},
                sink);
    const HttpHead head = SPC_TRY(run(fetch));
    Document document{.bytes = std::move(sink.text), .media_type = std::string(head.header("content-type")), .digest = {}};
    document.digest = Sha256::of(document.bytes);
    if (!expected || document.digest == *expected) return document;
    Error error = wrong_digest(what, document.digest, *expected);
    RegistryEndpoint* const mirror = fetch.mirror();
    if (mirror == nullptr) return error;
    mirror->gave_up = true;
    session_.log.write(LogLevel::warning, formatted("mirror {}: {}: trying the next one",
                                                    in_quotes(mirror->name), error.message()));
  }
}

Result<void> Repository::confirm(const Digest& manifest) {
  SPC_TRY(get_manifest(manifest));
  return {};
}

Result<std::optional<std::string>> Repository::find(FetchRequest request) {
  TextSink sink;
  request.accept = kManifestAccept;
  request.max_size = kMaxManifest;
  Fetch fetch(session_, std::move(request), sink);
  const auto head = run(fetch);
  if (!head && head.error().kind() == ErrorKind::not_found) return std::optional<std::string>();
  if (!head) return head.error();
  return std::optional(std::move(sink.text));
}

Result<std::optional<std::string>> Repository::find_manifest(const std::string& tag_or_digest, const std::string& what) {
  const auto expected = Digest::parse(tag_or_digest);
  auto found = SPC_TRY(
      find({.path = "manifests/" + tag_or_digest, .what = what, .not_from_mirrors = !expected && !mirrors_know_tags_}));
  if (!found || !expected) return found;
  if (const Digest digest = Sha256::of(*found); digest != *expected) return wrong_digest(what, digest, *expected);
  return found;
}

Result<std::optional<std::string>> Repository::find_referrers(const Digest& subject, const std::string& what) {
  return find({.path = "referrers/" + subject.str(), .what = what, .not_from_mirrors = !mirrors_know_tags_});
}

Result<std::string> Repository::get_small(const Digest& blob, std::uint64_t size, const std::string& what) {
  TextSink sink;
  Fetch fetch(session_, {.path = "blobs/" + blob.str(), .what = what, .exact_size = size}, sink);
  SPC_TRY(run(fetch));
  if (const Digest digest = Sha256::of(sink.text); digest != blob) return wrong_digest(what, digest, blob);
  return std::move(sink.text);
}

Result<std::string> Repository::get_config(const Descriptor& wanted) {
  const std::string what = "image configuration " + in_quotes(wanted.digest.str());
  if (wanted.size > kMaxConfig) return Error(ErrorKind::invalid, what + ": is larger than 8 MiB");
  return get_small(wanted.digest, wanted.size, what);
}

std::unique_ptr<BlobStream> Repository::open_layer(const Descriptor& layer, FetchSink& sink) {
  return std::make_unique<Fetch>(
      session_,
      FetchRequest{
          .path = "blobs/" + layer.digest.str(), .what = "layer " + in_quotes(layer.digest.str()), .exact_size = layer.size},
      sink);
}

}  // namespace spc
