#include "image/pull/repository.hpp"

#include <algorithm>
#include <span>

#include "base/format.hpp"
#include "base/nearest.hpp"
#include "base/sha256.hpp"
#include "image/peers/peer_stream.hpp"
#include "image/peers/public_statement.hpp"
#include "image/pull/shared_blob.hpp"
#include "image/registry/json.hpp"

namespace spc {
namespace {

constexpr std::uint64_t kMaxStatement = 4096;

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

/// {"name": …, "tags": […]}; what is none is left out, and so is all of an answer that is not
/// understood.
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

/// The nearest ones, at most five.
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
  if (tag_or_digest == reference_.tag_or_digest()) return "manifest " + in_quotes(shown_);
  return "manifest " + in_quotes(reference_.repository + "@" + tag_or_digest);
}

std::string Repository::manifest_name(const std::optional<Digest>& digest) const {
  return name_of_manifest(digest ? digest->str() : reference_.tag_or_digest());
}

Result<ImageSource::Document> Repository::get_top() {
  if (!reference_.digest &&
      (shared_ != nullptr || (!mirrors_know_tags_ && session_.endpoints.size() > 1))) {
    // The registry says which digest, the mirrors or the shared store have the bytes.
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

/// Which nodes are let have it without credentials need not ask one by one. Who came with the
/// user's asks, since that is another question.
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

/// Once, for the first document: before that, so that nobody who waits for this gets the document
/// first.
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
  peers_->meet(top, Peers::Lack::rights);
  if (peers_->has_sources()) SPC_TRY(hear_that_it_is_public(top));
  auto answer = has_answered_ ? Result<Digest>(manifest) : ask_digest(top.str());
  tell_that_it_is_public(top);
  peers_->tell_done();
  return answer;
}

/// Whose bytes they are is one question, who may have them another: that the registry is asked,
/// once, without fetching anything.
Result<std::optional<ImageSource::Document>> Repository::find_shared(const Digest& wanted,
                                                                     std::size_t limit) {
  std::optional<Document> none;
  auto bytes = shared_->document(wanted, limit, place());
  if (!bytes) return none;
  SPC_TRY(ask_for_rights(wanted));
  return std::optional(Document{.bytes = *std::move(bytes), .media_type = {}, .digest = wanted});
}

/// While another node fetches it, that is awaited: nodes that start at once are one pull.
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
      lease_.emplace(
          std::move(**taken));  // and once more: who had it until now may have brought the document
    } else {
      SPC_TRY(session_.http.wait(std::chrono::milliseconds(100)));
    }
  }
  auto document = fetch();
  if (document) shared_->add_document(wanted, document->bytes, place());
  lease_.reset();
  return document;
}

/// The first document that is asked for is the one by which the nodes find each other.
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
  peers_->meet(wanted);
  auto found = SPC_TRY(find_at_peers(path, wanted, limit));
  if (!found) found = SPC_TRY(otherwise());
  tell_that_it_is_public(wanted);
  peers_->put_document(wanted, found->bytes);
  return *std::move(found);
}

Result<ImageSource::Document> Repository::get_document(const std::string& tag_or_digest,
                                                       const std::optional<Digest>& expected) {
  const auto fetch = [&] { return fetch_document(tag_or_digest, expected); };
  if (!expected) {  // srun has not said what the tag stands for: each node asks
    auto document = fetch();
    if (document && peers_ != nullptr) {
      peers_->meet(document->digest);
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
    Error error = wrong_digest(what, document.digest, *expected);
    RegistryEndpoint* const mirror = fetch.mirror();
    if (mirror == nullptr) return error;
    mirror->gave_up = true;
    session_.log.write(LogLevel::warning, formatted("mirror {}: {}: trying the next one",
                                                    in_quotes(mirror->name), error.message()));
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
  const std::string from =
      formatted("fetch {} from registry {}", name_of_manifest(tag), in_quotes(session_.registry));
  if (!listed && listed.error().what().ends_with(
                     " does not exist")) {  // a registry without such a list answers 404, too
    return Error(ErrorKind::not_found, formatted("{}: {} does not exist", from, repository))
        .hint("check the spelling" +
              (session_.secret
                   ? ""
                   : "; for a private one, log in: scontainer login " + session_.registry));
  }
  const auto tags = listed ? tags_in(sink.text) : std::vector<std::string>();
  // Who is refused a manifest by a 404 may see its tag: then the registry's answer says more than
  // the list.
  if (tags.empty() || std::ranges::find(tags, tag) != tags.end()) return error;
  return Error(ErrorKind::not_found,
               formatted("{}: no tag {} in {}", from, in_quotes(tag), repository))
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

/// From the shared store, mirrors or the registry. The shared store has it from its beginning.
std::unique_ptr<BlobStream> Repository::open_elsewhere(const Descriptor& layer, FetchSink& sink,
                                                       std::uint64_t from) {
  const auto fetch = [this, layer, from](FetchSink& to) -> std::unique_ptr<BlobStream> {
    return std::make_unique<Fetch>(session_,
                                   FetchRequest{.path = "blobs/" + layer.digest.str(),
                                                .what = "layer " + in_quotes(layer.digest.str()),
                                                .exact_size = layer.size,
                                                .begin_at = shared_ == nullptr ? from : 0},
                                   to);
  };
  if (shared_ == nullptr) return fetch(sink);
  return std::make_unique<SharedBlob>(
      SharedPlace{.store = *shared_, .place = place(), .log = session_.log, .fetch = fetch}, layer,
      sink);
}

}  // namespace spc
