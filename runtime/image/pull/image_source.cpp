// Sources of manifests and layers: registry repositories with their peers and shared store, and the
// user's own images.

#include "image/pull/image_source.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "image/pull/shared_pull.hpp"
#include "registry/manifest.hpp"
#include "share/peers.hpp"

namespace spc {

// --- image source ---

namespace {

constexpr std::size_t kMaxIndexes = 3;

/// Compares platforms. The error names both the image's and the wanted one.
Result<void> check_platform(const ImageConfig& config, const Platform& wanted) {
  const Platform& is = config.platform;
  if ((is.os.empty() || is.os == wanted.os) &&
      (is.architecture.empty() || is.architecture == wanted.architecture))
    return {};
  return Error(ErrorKind::invalid,
               formatted("is built for {}, not for {}", printable(is.str()), wanted.str()))
      .hint("choose a tag built for " + wanted.str());
}

}  // namespace

Result<ResolvedImage> ImageSource::resolve(const Platform& platform) {
  ResolvedImage image;
  std::optional<Index::Entry> entry;  // entry of the index that led here
  for (;;) {
    const Document document = SPC_TRY(entry ? get_manifest(entry->descriptor.digest) : get_top());
    const std::string what = manifest_name(entry ? std::optional(document.digest) : std::nullopt);
    if (entry && document.bytes.size() != entry->descriptor.size) {
      return Error(ErrorKind::corrupt, formatted("{}: has {} bytes instead of {}", what,
                                                 document.bytes.size(), entry->descriptor.size));
    }
    auto parsed = SPC_TRY(parse_manifest(document.bytes, document.media_type, what));
    if (auto* manifest = std::get_if<Manifest>(&parsed)) {
      image.digest = document.digest;
      image.manifest_bytes = document.bytes;
      image.manifest = std::move(*manifest);
      break;
    }
    image.indexes.push_back(document.digest);
    if (image.indexes.size() > kMaxIndexes)
      return Error(ErrorKind::invalid, what + ": indexes are nested too deep");
    entry = SPC_TRY(choose_platform(std::get<Index>(parsed), platform, what));
  }

  const std::string what = "image configuration";
  image.config_bytes = SPC_TRY(get_config(image.manifest.config));
  image.config = SPC_TRY(parse_image_config(image.config_bytes, what));
  SPC_TRY(check_platform(image.config, platform));
  if (image.config.diff_ids.size() != image.manifest.layers.size()) {
    return Error(ErrorKind::corrupt,
                 formatted("{}: describes {} layers, the manifest {}", what,
                           image.config.diff_ids.size(), image.manifest.layers.size()));
  }
  return image;
}

// --- local source ---

namespace {

using Part = UserSourceLink::Part;

constexpr std::size_t kChunk = std::size_t{256} << 10;
// per turn; then the other layers get a turn
constexpr int kChunksAtOnce = 8;
constexpr char kWhoseFault[] = "write the image again";

/// Refuses anything but a regular file: a read could block forever.
Result<void> check_file(const Part& part) {
  struct stat status {};
  if (::fstat(part.file.get(), &status) != 0) return Error::from_errno(errno, "look at the file");
  if (!S_ISREG(status.st_mode)) return Error(ErrorKind::invalid, "is not a regular file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (part.offset > size || part.size > size - part.offset)
    return Error(ErrorKind::corrupt, "is not complete");
  return {};
}

/// Reads at most `into.size()` bytes of the part, from offset `at`.
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

/// A layer read from its part of a file, a few chunks per turn.
class FileStream final : public BlobStream {
 public:
  FileStream(UserSourceLink& link, Descriptor layer, FetchSink& sink)
      : link_(link), layer_(std::move(layer)), sink_(sink) {}

  void start() override {
    if (auto opened = open(); !opened) fail(std::move(opened).error());
  }
  /// A file is always readable, so a poll that includes it returns at once.
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
  std::size_t from_ = 0;  // offset in the chunk of the bytes not yet passed to the sink
  std::uint64_t sent_ = 0;
  bool paused_ = false;
  std::optional<Error> failed_;
};

}  // namespace

std::string LocalSource::manifest_name(const std::optional<Digest>& digest) const {
  return digest ? "manifest " + in_quotes(digest->str()) : "manifest";
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
  if (!part) return Error(ErrorKind::corrupt, what + ": is missing").hint("push the image again");
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
  if (!part) return Error(ErrorKind::corrupt, what + ": is missing").hint("push the image again");
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

// --- repository ---

namespace {

constexpr std::uint64_t kMaxStatement = 4096;

/// Collects the response in memory. Fetch limits its size.
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

/// Parses {"name": …, "tags": […]}. Skips entries that are no tags. Returns an empty list if the
/// answer cannot be parsed.
std::vector<std::string> tags_in(const std::string& answer) {
  std::vector<std::string> tags;
  const auto document = parse_json_object(answer, "list of tags");
  if (!document) return tags;
  const auto list = document->list("tags");
  if (!list) return tags;
  for (const Json& one : **list) {
    if (one.is_text()) tags.push_back(one.as_text());
  }
  return tags;
}

/// Returns a hint with the nearest tags, at most five.
std::string hint_of_tags(const std::string& typed, std::vector<std::string> tags) {
  constexpr std::size_t kShown = 5;
  std::ranges::stable_sort(tags, {},
                           [&](const std::string& tag) { return letters_between(typed, tag); });
  std::string list;
  for (const std::string& tag : std::span(tags).first(std::min(kShown, tags.size()))) {
    list += formatted("{}{}", list.empty() ? "" : ", ", printable(tag).substr(0, 60));
  }
  return tags.size() > kShown ? formatted("the nearest of {} tags: {}", tags.size(), list)
                              : "it has: " + list;
}

}  // namespace

Repository::Repository(HttpClient& http, Log& log, const ImageReference& reference,
                       const Config& config, AskUser ask_user)
    : reference_(reference),
      shown_(reference.canonical()),
      mirrors_know_tags_(config.mirrors_of(reference.registry, reference.repository).resolve_tags),
      session_{.http = http,
               .log = log,
               .registry = reference.registry,
               .repository = reference.repository,
               .endpoints = endpoints_of(reference, config),
               .config = &config,
               .ask_user = std::move(ask_user),
               .user_first = !reference.user.empty()} {}

Result<HttpHead> Repository::run(Fetch& fetch) {
  fetch.start();
  while (!fetch.finished()) {
    SPC_TRY(session_.http.wait(std::chrono::milliseconds(100)));
    fetch.advance();
    if (lease_) lease_->beat();
  }
  return fetch.result();
}

Result<bool> Repository::run(BlobStream& stream) {
  stream.start();
  while (!stream.finished()) {
    SPC_TRY(session_.http.wait(std::chrono::milliseconds(100)));
    stream.advance();
  }
  return stream.outcome().has_value();
}

Result<Digest> Repository::ask_digest(const std::string& tag_or_digest) {
  TextSink sink;
  Fetch fetch(session_,
              {.path = "manifests/" + tag_or_digest,
               .what = name_of_manifest(tag_or_digest),
               .is_image = is_image(tag_or_digest),
               .head = true,
               .accept = kManifestAccept,
               .not_from_mirrors = !mirrors_know_tags_ && !Digest::parse(tag_or_digest)},
              sink);
  auto head = run(fetch);
  if (!head) return missing(tag_or_digest, std::move(head).error());
  has_answered_ = true;
  return Digest::parse(head->header("docker-content-digest"));
}

std::string Repository::name_of_manifest(const std::string& tag_or_digest) const {
  if (is_image(tag_or_digest)) return "manifest " + in_quotes(shown_);
  return "manifest " + in_quotes(reference_.repository + "@" + tag_or_digest);
}

std::string Repository::manifest_name(const std::optional<Digest>& digest) const {
  return digest ? name_of_manifest(digest->str()) : "manifest";
}

Result<ImageSource::Document> Repository::get_top() {
  if (!reference_.digest &&
      (shared_ != nullptr || (!mirrors_know_tags_ && session_.endpoints.size() > 1))) {
    // The registry decides the digest; mirrors or the shared store have the bytes.
    const auto digest = ask_digest(reference_.tag);
    if (digest) return get_document(digest->str(), *digest);
    if (digest.error().kind() != ErrorKind::invalid) return digest.error();
  }
  return get_document(reference_.tag_or_digest(), reference_.digest);
}

Result<ImageSource::Document> Repository::get_manifest(const Digest& wanted) {
  return get_document(wanted.str(), wanted);
}

Result<void> Repository::ask_for_rights(const Digest& wanted) {
  if (has_answered_) return {};
  const auto answer = ask_digest(wanted.str());
  return answer || has_answered_ ? Result<void>() : answer.error();
}

/// Accepts a peer's statement, so that nodes that find the image public need not ask the registry
/// one by one. If the user named the credentials, the registry is asked nevertheless, because the
/// answer may differ.
Result<void> Repository::hear_that_it_is_public(const Digest& top) {
  if (has_answered_ || session_.user_first) return {};
  const Digest name = PublicStatement{.place = place(), .top = top}.name();
  TextSink sink;
  PeerStream stream(*peers_,
                    {.digest = name,
                     .path = "blobs/" + name.str(),
                     .what = "who may have it",
                     .size = {},
                     .limit = kMaxStatement,
                     .otherwise = {}},
                    sink);
  if (!SPC_TRY(run(stream))) return {};
  const auto statement = read_statement(place(), top, sink.text);
  if (!statement) {
    session_.log.write(LogLevel::info,
                       "what another node says of who may have the image does not count: " +
                           statement.error().message());
    return {};
  }
  has_answered_ = true;
  asked_by_others_at_ = statement->asked_at;
  statement_ = std::move(sink.text);
  return {};
}

/// Announces once, for the first document, whether it is public. Call it before offering the
/// document, so that no node that waits for the statement gets the document first.
void Repository::tell_that_it_is_public(const Digest& top) {
  if (std::exchange(has_told_, true)) return;
  const PublicStatement statement{.place = place(), .top = top, .asked_at = std::time(nullptr)};
  if (statement_.empty() && has_answered_ && session_.access == Access::anonymous &&
      !session_.user_first && peers_->is_serving()) {
    if (auto text = sign(statement)) statement_ = *std::move(text);
  }
  if (statement_.empty()) return peers_->will_not_put(statement.name());
  peers_->put_document(statement.name(), statement_);
}

Result<Digest> Repository::ask_for_all(const Digest& top, const Digest& manifest) {
  if (peers_ == nullptr || session_.user_first) return ask_digest(manifest.str());
  peers_->join(top, Peers::Lack::rights);
  if (peers_->has_sources()) SPC_TRY(hear_that_it_is_public(top));
  auto answer = has_answered_ ? Result<Digest>(manifest) : ask_digest(top.str());
  tell_that_it_is_public(top);
  peers_->tell_done();
  return answer;
}

/// Finds a document in the shared store. The bytes may come from there, but the registry decides
/// access: it is asked once, without fetching.
Result<std::optional<ImageSource::Document>> Repository::find_shared(const Digest& wanted,
                                                                     std::size_t limit) {
  std::optional<Document> none;
  auto bytes = shared_->document(wanted, limit, place());
  if (!bytes) return none;
  SPC_TRY(ask_for_rights(wanted));
  return std::optional(Document{.bytes = *std::move(bytes), .media_type = {}, .digest = wanted});
}

/// Fetches a document, or waits while another node fetches it: nodes that start at the same time
/// make one pull.
Result<ImageSource::Document> Repository::shared_or(
    const Digest& wanted, std::size_t limit, const std::function<Result<Document>()>& fetch) {
  constexpr std::chrono::seconds kPatience{20};
  if (shared_ == nullptr) return fetch();
  WatchedLease others;
  lease_.reset();
  for (const auto began = std::chrono::steady_clock::now();;) {
    if (auto found = SPC_TRY(find_shared(wanted, limit))) {
      lease_.reset();
      return *std::move(found);
    }
    if (lease_ || std::chrono::steady_clock::now() - began > kPatience) break;
    auto taken = shared_->lease(wanted, place(), others);
    if (!taken) break;
    if (*taken) {
      lease_.emplace(std::move(**taken));  // and look again: the previous holder may have stored it
    } else {
      SPC_TRY(session_.http.wait(std::chrono::milliseconds(100)));
    }
  }
  auto document = fetch();
  if (document) shared_->add_document(wanted, document->bytes, place());
  lease_.reset();
  return document;
}

/// Finds a document at peers. Nodes with the same first document form one group.
Result<std::optional<ImageSource::Document>> Repository::find_at_peers(const std::string& path,
                                                                       const Digest& wanted,
                                                                       std::size_t limit) {
  std::optional<Document> none;
  if (!peers_->has_sources()) return none;
  SPC_TRY(hear_that_it_is_public(wanted));
  SPC_TRY(ask_for_rights(wanted));
  while (!peers_->were_wrong_twice(wanted)) {
    TextSink sink;
    PeerStream stream(*peers_,
                      {.digest = wanted,
                       .path = path + wanted.str(),
                       .what = path + wanted.str(),
                       .size = {},
                       .limit = limit,
                       .otherwise = {}},
                      sink);
    if (!SPC_TRY(run(stream))) return none;
    if (Sha256::of(sink.text) == wanted)
      return std::optional(
          Document{.bytes = std::move(sink.text), .media_type = {}, .digest = wanted});
    if (!stream.blames_nodes()) return none;
  }
  return none;
}

Result<ImageSource::Document> Repository::peers_or(
    const std::string& path, const Digest& wanted, std::size_t limit,
    const std::function<Result<Document>()>& otherwise) {
  if (peers_ == nullptr) return otherwise();
  peers_->join(wanted);
  auto found = SPC_TRY(find_at_peers(path, wanted, limit));
  if (!found) found = SPC_TRY(otherwise());
  peers_->report_wrong(wanted);
  tell_that_it_is_public(wanted);
  peers_->put_document(wanted, found->bytes);
  return *std::move(found);
}

Result<ImageSource::Document> Repository::get_document(const std::string& tag_or_digest,
                                                       const std::optional<Digest>& expected) {
  const auto fetch = [&] { return fetch_document(tag_or_digest, expected); };
  // srun has not resolved the tag, so each node asks.
  if (!expected) {
    auto document = fetch();
    if (document && peers_ != nullptr) {
      peers_->join(document->digest);
      tell_that_it_is_public(document->digest);
      peers_->put_document(document->digest, document->bytes);
    }
    return document;
  }
  return peers_or("manifests/", *expected, kMaxManifest,
                  [&] { return shared_or(*expected, kMaxManifest, fetch); });
}

Result<ImageSource::Document> Repository::fetch_document(const std::string& tag_or_digest,
                                                         const std::optional<Digest>& expected) {
  const std::string what = name_of_manifest(tag_or_digest);
  for (;;) {
    TextSink sink;
    Fetch fetch(session_,
                {.path = "manifests/" + tag_or_digest,
                 .what = what,
                 .is_image = is_image(tag_or_digest),
                 .accept = kManifestAccept,
                 .max_size = kMaxManifest,
                 .not_from_mirrors = !expected && !mirrors_know_tags_},
                sink);
    auto head = run(fetch);
    if (!head) return missing(tag_or_digest, std::move(head).error());
    Document document{.bytes = std::move(sink.text),
                      .media_type = std::string(head->header("content-type")),
                      .digest = {}};
    document.digest = Sha256::of(document.bytes);
    if (!expected || document.digest == *expected) {
      has_answered_ = true;
      return document;
    }
    RegistryEndpoint* const mirror = fetch.mirror();
    if (mirror == nullptr) {
      return wrong_digest(is_image(tag_or_digest) ? "manifest" : what, document.digest, *expected);
    }
    mirror->gave_up = true;
    session_.log.write(LogLevel::warning,
                       formatted("mirror {}: {}: trying the next one", in_quotes(mirror->name),
                                 wrong_digest(what, document.digest, *expected).message()));
  }
}

Result<void> Repository::confirm(const Digest& manifest) {
  SPC_TRY(fetch_document(manifest.str(), manifest));
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

Result<std::optional<std::string>> Repository::find_manifest(const std::string& tag_or_digest,
                                                             const std::string& what) {
  const auto expected = Digest::parse(tag_or_digest);
  auto found = SPC_TRY(find({.path = "manifests/" + tag_or_digest,
                             .what = what,
                             .not_from_mirrors = !expected && !mirrors_know_tags_}));
  if (!found || !expected) return found;
  if (const Digest digest = Sha256::of(*found); digest != *expected)
    return wrong_digest(what, digest, *expected);
  return found;
}

Result<std::optional<std::string>> Repository::find_referrers(const Digest& subject,
                                                              const std::string& what) {
  return find({.path = "referrers/" + subject.str(),
               .what = what,
               .not_from_mirrors = !mirrors_know_tags_});
}

Error Repository::missing(const std::string& tag, Error error) {
  if (error.kind() != ErrorKind::not_found || Digest::parse(tag)) return error;
  TextSink sink;
  Fetch fetch(session_,
              {.path = "tags/list?n=1000",
               .what = "list of tags",
               .max_size = 1 << 20,
               .not_from_mirrors = true},
              sink);
  const auto listed = run(fetch);
  const std::string repository = "repository " + in_quotes(session_.repository);
  // A registry without such a list also answers 404.
  if (!listed && fetch.is_repository_unknown()) {
    return Error(ErrorKind::not_found, repository + " does not exist")
        .hint("check the spelling" +
              (session_.secret
                   ? ""
                   : "; for a private one, log in: scontainer login " + session_.registry));
  }
  const auto tags = listed ? tags_in(sink.text) : std::vector<std::string>();
  // A registry may answer 404 for a manifest to refuse access and still list its tag. Then report
  // the registry's own answer.
  if (tags.empty() || std::ranges::find(tags, tag) != tags.end()) return error;
  return Error(ErrorKind::not_found, formatted("no tag {} in {}", in_quotes(tag), repository))
      .hint(hint_of_tags(tag, tags));
}

Result<std::string> Repository::get_small(const Digest& blob, std::uint64_t size,
                                          const std::string& what) {
  TextSink sink;
  Fetch fetch(session_, {.path = "blobs/" + blob.str(), .what = what, .exact_size = size}, sink);
  SPC_TRY(run(fetch));
  if (const Digest digest = Sha256::of(sink.text); digest != blob)
    return wrong_digest(what, digest, blob);
  return std::move(sink.text);
}

Result<std::string> Repository::get_config(const Descriptor& wanted) {
  const std::string what = "image configuration " + in_quotes(wanted.digest.str());
  if (wanted.size > kMaxConfig) return Error(ErrorKind::invalid, what + ": is larger than 8 MiB");
  const auto fetch = [&]() -> Result<Document> {
    return Document{.bytes = SPC_TRY(get_small(wanted.digest, wanted.size, what)),
                    .media_type = {},
                    .digest = wanted.digest};
  };
  const auto elsewhere = [&] { return shared_or(wanted.digest, kMaxConfig, fetch); };
  return SPC_TRY(peers_or("blobs/", wanted.digest, kMaxConfig, elsewhere)).bytes;
}

std::unique_ptr<BlobStream> Repository::open_layer(const Descriptor& layer, FetchSink& sink) {
  if (peers_ == nullptr) return open_elsewhere(layer, sink, 0);
  PeerBlob blob{
      .digest = layer.digest,
      .path = "blobs/" + layer.digest.str(),
      .what = "layer " + in_quotes(layer.digest.str()),
      .size = layer.size,
      .otherwise = [this, layer](FetchSink& to,
                                 std::uint64_t from) { return open_elsewhere(layer, to, from); },
      .otherwise_at_begin = shared_ != nullptr};
  return std::make_unique<PeerStream>(*peers_, std::move(blob), sink);
}

/// Opens a blob from the shared store, mirrors or the registry. The shared store delivers it from
/// its beginning, the others from `from` on.
std::unique_ptr<BlobStream> Repository::open_elsewhere(const Descriptor& layer, FetchSink& sink,
                                                       std::uint64_t from) {
  const auto fetch = [this, layer, from](FetchSink& to) -> std::unique_ptr<BlobStream> {
    FetchRequest request{.path = "blobs/" + layer.digest.str(),
                         .what = "layer " + in_quotes(layer.digest.str()),
                         .exact_size = layer.size,
                         .begin_at = shared_ == nullptr ? from : 0};
    if (layer.size >= (ranges_.helps == true ? kLeastKnownToBeRanged : kLeastRangedBlob))
      return open_in_ranges(session_, std::move(request), to, ranges_);
    return std::make_unique<Fetch>(session_, std::move(request), to);
  };
  if (shared_ == nullptr) return fetch(sink);
  return std::make_unique<SharedBlob>(
      SharedPlace{.store = *shared_, .place = place(), .log = session_.log, .fetch = fetch}, layer,
      sink);
}

}  // namespace spc
