#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "config/config.hpp"
#include "reference/reference.hpp"
#include "registry/client.hpp"
#include "registry/http.hpp"
#include "registry/manifest.hpp"
#include "share/peers.hpp"
#include "share/shared_store.hpp"

namespace spc {

// --- image source ---

/// An image without its layers. All bytes matched their digests before they were parsed.
struct ResolvedImage {
  Digest digest;  ///< of the image manifest
  std::string manifest_bytes;
  Manifest manifest;
  std::string config_bytes;
  ImageConfig config;
  std::vector<Digest> indexes;  ///< indexes that led to the manifest
};

/// Source of an image: a repository in a registry, or files that only the user may read.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  /// Follows indexes to the image for `platform` and fetches its manifest and configuration. An
  /// image for another platform is refused here, before any layer is fetched.
  Result<ResolvedImage> resolve(const Platform& platform);

  /// Fetches a layer's blob into `sink`, which checks the digest.
  virtual std::unique_ptr<BlobStream> open_layer(const Descriptor& layer, FetchSink& sink) = 0;

 protected:
  static constexpr std::uint64_t kMaxManifest = 4 << 20;
  static constexpr std::uint64_t kMaxConfig = 8 << 20;

  struct Document {
    std::string bytes;
    std::string media_type;  ///< as stated by the source; may be empty
    Digest digest;           ///< of `bytes`
  };
  /// Name for messages: the image, and the manifest or index that it resolves to or that `digest`
  /// names.
  [[nodiscard]] virtual std::string manifest_name(const std::optional<Digest>& digest) const = 0;

  /// Returns the document that the image's name resolves to.
  virtual Result<Document> get_top() = 0;
  /// Return bytes of the requested digest, or an error.
  virtual Result<Document> get_manifest(const Digest& wanted) = 0;
  virtual Result<std::string> get_config(const Descriptor& wanted) = 0;
};

// --- local source ---

/// An image that only its user may read: an archive, a layout, or a local storage. A process of the
/// user locates it and passes parts of files, which are read here. The user can change their
/// content at any time, so every digest is verified, as for a registry.
class LocalSource final : public ImageSource {
 public:
  /// `link` is borrowed.
  explicit LocalSource(UserSourceLink& link) : link_(link) {}

  std::unique_ptr<BlobStream> open_layer(const Descriptor& layer, FetchSink& sink) override;

 private:
  [[nodiscard]] std::string manifest_name(const std::optional<Digest>& digest) const override;
  Result<Document> get_top() override;
  Result<Document> get_manifest(const Digest& wanted) override;
  Result<std::string> get_config(const Descriptor& wanted) override;

  UserSourceLink& link_;
};

// --- ranged blob ---

/// State that the large blobs of one repository share.
struct RangeUse {
  std::optional<bool> helps;  ///< several connections are faster than one; empty: not known
  std::size_t in_flight = 0;  ///< chunks that are fetched or in memory
};

/// Blobs of this many bytes are worth finding out whether several connections are faster, and those
/// of so many are fetched by several if they are.
inline constexpr std::uint64_t kLeastRangedBlob = 32 << 20, kLeastKnownToBeRanged = 4 << 20;

/// Returns a stream of a large blob over as many connections as make it faster (ranged_blob.cpp).
/// `request` has the blob's exact size. `session` and `use` are borrowed.
std::unique_ptr<BlobStream> open_in_ranges(RegistrySession& session, FetchRequest request,
                                           FetchSink& sink, RangeUse& use);

// --- repository ---

/// A repository in a registry, or in its mirrors. Tries anonymous access first, then the
/// credentials found by `ask_user`. If the reference names a user, tries that user's credentials
/// first.
class Repository final : public ImageSource {
 public:
  using AskUser = std::function<Result<std::optional<RegistrySecret>>()>;
  /// `http` and `log` are borrowed.
  Repository(HttpClient& http, Log& log, const ImageReference& reference, const Config& config,
             AskUser ask_user = {});

  /// Sets the shared store, which is searched before the registry and filled after a fetch. The
  /// registry still decides access. Borrowed, null: no shared store.
  void look_first_in(const SharedStore* shared) { shared_ = shared; }

  /// Sets the step's other nodes, from which blobs and manifests are requested before the registry.
  /// Borrowed, null: no peers.
  void take_from(Peers* peers) { peers_ = peers, has_told_ = false; }

  /// Sets the name shown in messages if it differs from the reference.
  void show_as(std::string name) { shown_ = std::move(name); }

  /// Returns the digest of the manifest or index that a tag resolves to now. Sends one HEAD
  /// request.
  Result<Digest> ask_digest(const std::string& tag_or_digest);

  /// Checks like ask_digest whether the registry serves `manifest`, by the document that `top`
  /// names. While the image is public, one request serves all nodes of the step that ask.
  Result<Digest> ask_for_all(const Digest& top, const Digest& manifest);

  /// Checks that the registry serves exactly this manifest.
  Result<void> confirm(const Digest& manifest);
  // Documents attached to an image. `what` is for messages. They return an empty optional if no
  // such document exists.
  Result<std::optional<std::string>> find_manifest(const std::string& tag_or_digest,
                                                   const std::string& what);
  Result<std::optional<std::string>> find_referrers(const Digest& subject, const std::string& what);
  /// Returns a blob that fits into memory. The caller has checked its size.
  Result<std::string> get_small(const Digest& blob, std::uint64_t size, const std::string& what);
  /// Returns the access rights with which everything so far was fetched.
  [[nodiscard]] Access access() const { return session_.access; }
  /// Returns the time of the registry's answer if another node asked for this one.
  [[nodiscard]] std::optional<std::int64_t> asked_by_others_at() const {
    return asked_by_others_at_;
  }
  /// Returns registry and repository: the "place" of the shared store.
  [[nodiscard]] std::string place() const {
    return reference_.registry + "/" + reference_.repository;
  }
  [[nodiscard]] std::string tag_or_digest() const { return reference_.tag_or_digest(); }

  std::unique_ptr<BlobStream> open_layer(const Descriptor& layer, FetchSink& sink) override;

 private:
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
  /// Makes sure that the registry has granted this user access at least once.
  Result<void> ask_for_rights(const Digest& wanted);
  /// Accepts another node's statement that the image is public.
  Result<void> hear_that_it_is_public(const Digest& top);
  void tell_that_it_is_public(const Digest& top);
  std::unique_ptr<BlobStream> open_elsewhere(const Descriptor& layer, FetchSink& sink,
                                             std::uint64_t from);
  Result<Document> shared_or(const Digest& wanted, std::size_t limit,
                             const std::function<Result<Document>()>& fetch);
  Result<std::optional<std::string>> find(FetchRequest request);
  /// Returns a better error than "not found" for a missing `tag`: lists similar tags if the
  /// registry has a list.
  Error missing(const std::string& tag, Error error);
  Result<HttpHead> run(Fetch& fetch);
  /// Returns whether the stream is complete.
  Result<bool> run(BlobStream& stream);

  /// Returns whether this is the image itself, not an entry of its index.
  [[nodiscard]] bool is_image(const std::string& tag_or_digest) const {
    return tag_or_digest == reference_.tag_or_digest();
  }
  [[nodiscard]] std::string name_of_manifest(const std::string& tag_or_digest) const;

  ImageReference reference_;
  std::string shown_;
  bool mirrors_know_tags_;
  bool has_answered_ = false;  ///< the registry answered for the top document
  std::optional<std::int64_t> asked_by_others_at_;
  std::string statement_;  ///< another node's statement that the image is public
  bool has_told_ = false;  ///< peers know whether the image is public
  const SharedStore* shared_ = nullptr;
  Peers* peers_ = nullptr;
  std::optional<Lease> lease_;  ///< lease of the document being fetched
  RangeUse ranges_;
  RegistrySession session_;
};

}  // namespace spc
