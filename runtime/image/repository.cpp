#include "repository.hpp"

#include "image/sha256.hpp"

namespace spc {
namespace {

constexpr std::uint64_t kMaxManifest = 4 << 20;
constexpr std::uint64_t kMaxConfig = 8 << 20;
constexpr int kMaxIndexes = 3;

/// Keeps what comes in memory; Fetch bounds it.
class TextSink final : public FetchSink {
 public:
  HttpHandler::Take take(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return HttpHandler::Take::taken;
  }
  std::string text;
};

std::string manifest_name(const ImageReference& reference, const std::string& tag_or_digest) {
  if (tag_or_digest == reference.tag_or_digest()) return "manifest " + quoted(reference.canonical());
  return "manifest " + quoted(reference.repository + "@" + tag_or_digest);
}

Error wrong_digest(const std::string& what, const Digest& got, const Digest& expected) {
  return std::move(Error(ErrorKind::corrupt, what + ": has digest " + got.str() + " instead of " + expected.str())
                       .hint("the registry or something on the way changed it"));
}

}  // namespace

Repository::Repository(HttpClient& http, Log& log, const ImageReference& reference, const RegistryConfig& config)
    : reference_(reference),
      session_{.http = http,
               .log = log,
               .registry = reference.registry,
               .base_url = (config.insecure ? "http://" : "https://") + reference.api_host(),
               .repository = reference.repository,
               .ca = config.ca} {}

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
               .what = manifest_name(reference_, tag_or_digest),
               .head = true,
               .accept = kManifestAccept},
              sink);
  const HttpHead head = SPC_TRY(run(fetch));
  return Digest::parse(head.header("docker-content-digest"));
}

Result<Repository::Document> Repository::get_manifest(const std::string& tag_or_digest, const std::optional<Digest>& expected) {
  const std::string what = manifest_name(reference_, tag_or_digest);
  TextSink sink;
  Fetch fetch(session_, {.path = "manifests/" + tag_or_digest, .what = what, .accept = kManifestAccept, .max_size = kMaxManifest},
              sink);
  const HttpHead head = SPC_TRY(run(fetch));
  Document document{.bytes = std::move(sink.text), .content_type = std::string(head.header("content-type"))};
  document.digest = Sha256::of(document.bytes);
  if (expected && document.digest != *expected) return wrong_digest(what, document.digest, *expected);
  return document;
}

Result<std::string> Repository::get_config(const Descriptor& config) {
  const std::string what = "image configuration " + quoted(config.digest.str());
  if (config.size > kMaxConfig) return Error(ErrorKind::invalid, what + ": is larger than 8 MiB");
  TextSink sink;
  Fetch fetch(session_, {.path = "blobs/" + config.digest.str(), .what = what, .exact_size = config.size}, sink);
  SPC_TRY(run(fetch));
  if (const Digest digest = Sha256::of(sink.text); digest != config.digest) return wrong_digest(what, digest, config.digest);
  return std::move(sink.text);
}

Result<ResolvedImage> Repository::resolve(const Platform& platform) {
  ResolvedImage image;
  std::string next = reference_.tag_or_digest();
  std::optional<Digest> expected = reference_.digest;
  std::optional<std::uint64_t> expected_size;
  for (;;) {
    const Document document = SPC_TRY(get_manifest(next, expected));
    const std::string what = manifest_name(reference_, next);
    if (expected_size && document.bytes.size() != *expected_size) {
      return Error(ErrorKind::corrupt, what + ": has " + std::to_string(document.bytes.size()) + " bytes instead of " +
                                           std::to_string(*expected_size));
    }
    auto parsed = SPC_TRY(parse_manifest(document.bytes, document.content_type, what));
    if (auto* manifest = std::get_if<Manifest>(&parsed)) {
      image.digest = document.digest;
      image.manifest_bytes = document.bytes;
      image.manifest = std::move(*manifest);
      break;
    }
    image.indexes.push_back(document.digest);
    if (image.indexes.size() > kMaxIndexes) return Error(ErrorKind::invalid, what + ": indexes are nested too deep");
    const auto entry = SPC_TRY(choose_platform(std::get<Index>(parsed), platform, what));
    expected = entry.descriptor.digest;
    expected_size = entry.descriptor.size;
    next = expected->str();
  }

  const std::string what = "image configuration of " + quoted(reference_.canonical());
  image.config_bytes = SPC_TRY(get_config(image.manifest.config));
  image.config = SPC_TRY(parse_image_config(image.config_bytes, what));
  const Platform& is = image.config.platform;
  if ((!is.os.empty() && is.os != platform.os) || (!is.architecture.empty() && is.architecture != platform.architecture)) {
    return Error(ErrorKind::invalid, "image " + quoted(reference_.canonical()) + ": is made for " + printable(is.str()) +
                                         ", this node needs " + platform.str())
        .hint("choose a tag that was built for " + platform.str());
  }
  if (image.config.diff_ids.size() != image.manifest.layers.size()) {
    return Error(ErrorKind::corrupt, what + ": describes " + std::to_string(image.config.diff_ids.size()) +
                                         " layers, the manifest " + std::to_string(image.manifest.layers.size()));
  }
  return image;
}

std::unique_ptr<Fetch> Repository::fetch_layer(const Descriptor& layer, FetchSink& sink) {
  return std::make_unique<Fetch>(
      session_,
      FetchRequest{
          .path = "blobs/" + layer.digest.str(), .what = "layer " + quoted(layer.digest.str()), .exact_size = layer.size},
      sink);
}

}  // namespace spc
