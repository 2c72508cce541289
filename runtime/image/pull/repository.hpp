#pragma once

#include <memory>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/peers/peers.hpp"
#include "image/pull/image_source.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/fetch.hpp"
#include "image/shared/shared_store.hpp"

namespace spc {

/// One repository in a registry, or in its mirrors. Anonymous access is tried first, then the
/// credentials found by `ask_user`; or these at once if the reference names a user.
class Repository final : public ImageSource {
 public:
  using AskUser = std::function<Result<std::optional<RegistrySecret>>()>;
  /// `http` and `log` are borrowed.
  Repository(HttpClient& http, Log& log, const ImageReference& reference, const Config& config,
             AskUser ask_user = {});

  /// Blobs and manifests are looked for there first, and put there. Who may have the image the
  /// registry still says. Borrowed; null: there is none.
  void look_first_in(const SharedStore* shared) { shared_ = shared; }

  /// Blobs and manifests are asked for from other nodes of the step first. Borrowed; null: there
  /// are none.
  void take_from(Peers* peers) { peers_ = peers, has_told_ = false; }

  /// For messages, where the user gave it another name.
  void show_as(std::string name) { shown_ = std::move(name); }

  /// What a tag resolves to now, by one HEAD request: the digest of a manifest or an index.
  Result<Digest> ask_digest(const std::string& tag_or_digest);

  /// As ask_digest, whether it serves the manifest of an image that is here: by what `top` names,
  /// and one request for all nodes of the step that ask this, as long as everybody may have it.
  Result<Digest> ask_for_all(const Digest& top, const Digest& manifest);

  /// Whether the registry serves exactly this manifest.
  Result<void> confirm(const Digest& manifest);
  // What is attached to an image; `what` is for messages. Empty: there is nothing of that name.
  Result<std::optional<std::string>> find_manifest(const std::string& tag_or_digest,
                                                   const std::string& what);
  Result<std::optional<std::string>> find_referrers(const Digest& subject, const std::string& what);
  /// A blob that fits into memory: the caller has checked its size.
  Result<std::string> get_small(const Digest& blob, std::uint64_t size, const std::string& what);
  /// Who may have what was fetched so far.
  [[nodiscard]] Access access() const { return session_.access; }
  /// When the registry was asked, if another node did that for this one.
  [[nodiscard]] std::optional<std::int64_t> asked_by_others_at() const {
    return asked_by_others_at_;
  }
  /// Registry and repository: what the shared store calls a place.
  [[nodiscard]] std::string place() const {
    return reference_.registry + "/" + reference_.repository;
  }
  [[nodiscard]] std::string tag_or_digest() const { return reference_.tag_or_digest(); }

  std::unique_ptr<BlobStream> open_layer(const Descriptor& layer, FetchSink& sink) override;

 private:
  [[nodiscard]] std::string name() const override { return shown_; }
  [[nodiscard]] std::string manifest_name(const std::optional<Digest>& digest) const override;
  Result<Document> get_top() override;
  Result<Document> get_manifest(const Digest& wanted) override;
  Result<std::string> get_config(const Descriptor& wanted) override;

  Result<Document> get_document(const std::string& tag_or_digest,
                                const std::optional<Digest>& expected);
  Result<Document> fetch_document(const std::string& tag_or_digest,
                                  const std::optional<Digest>& expected);
  Result<std::optional<Document>> find_shared(const Digest& wanted, std::size_t limit);
  Result<std::optional<Document>> find_at_peers(const std::string& path, const Digest& wanted,
                                                std::size_t limit);
  Result<Document> peers_or(const std::string& path, const Digest& wanted, std::size_t limit,
                            const std::function<Result<Document>()>& otherwise);
  /// The registry has said, at least once, that this user may have it.
  Result<void> ask_for_rights(const Digest& wanted);
  /// Another node has said so for it.
  Result<void> hear_that_it_is_public(const Digest& top);
  void tell_that_it_is_public(const Digest& top);
  std::unique_ptr<BlobStream> open_elsewhere(const Descriptor& layer, FetchSink& sink,
                                             std::uint64_t from);
  Result<Document> shared_or(const Digest& wanted, std::size_t limit,
                             const std::function<Result<Document>()>& fetch);
  Result<std::optional<std::string>> find(FetchRequest request);
  /// What the registry says of other tags, if it has not `tag`: a better error than that it is not
  /// there.
  Error missing(const std::string& tag, Error error);
  Result<HttpHead> run(Fetch& fetch);
  /// Whether all of it came.
  Result<bool> run(BlobStream& stream);

  [[nodiscard]] std::string name_of_manifest(const std::string& tag_or_digest) const;

  ImageReference reference_;
  std::string shown_;
  bool mirrors_know_tags_;
  bool has_answered_ = false;  ///< the registry, for the top document
  std::optional<std::int64_t> asked_by_others_at_;
  std::string statement_;  ///< of another node, that everybody may have it
  bool has_told_ = false;  ///< other nodes, whether it is public
  const SharedStore* shared_ = nullptr;
  Peers* peers_ = nullptr;
  std::optional<Lease> lease_;  ///< of the document that is being fetched
  RegistrySession session_;
};

}  // namespace spc
