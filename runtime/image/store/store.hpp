#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/reference/named_image.hpp"
#include "image/store/record.hpp"
#include "image/store/store_keeper.hpp"

namespace spc {

/// Raised whenever layer-writer's output for the same blob changes.
inline constexpr std::uint32_t kLayerFormat = 3;

/// A layer's name in layers/sha256/. Names differ per format, so that programs of two versions,
/// used one after the other or side by side, never use each other's layers; unused ones are evicted
/// like any other. (A name is a digest or one bit pattern away from one: a collision would take a
/// preimage.)
Digest layer_name(const Digest& blob, std::uint32_t format = kLayerFormat);

/// How an image's layer is named in the store. A layer that was fitted to those below it is of use
/// in images that begin with the same layers only, and has a name of its own.
struct LayerNames {
  Digest alone;
  Digest fitted;
};
/// A manifest's layers, each once, where it is topmost: overlayfs takes none twice, and what the
/// topmost says counts.
std::vector<Digest> distinct_layers(std::span<const Digest> blobs);
/// Of all layers of an image, by their distinct blobs, the bottom layer first. No blob can have a
/// fitted layer's name, or the other way round: that would take two contents whose digests differ
/// in all bits.
std::vector<LayerNames> layer_names(std::span<const Digest> blobs,
                                    std::uint32_t format = kLayerFormat);

/// Consecutive layers of an image that are one file in the store: those at the places from `begin`
/// to before `end`.
struct LayerRun {
  std::size_t begin = 0, end = 0;
  [[nodiscard]] bool is_merged() const { return end - begin > 1; }
  bool operator==(const LayerRun&) const = default;
};
/// Which layers are merged, by the sizes of their distinct blobs: of an image with more than 16
/// layers the small ones, so that it needs few mounts. Where runs begin and end depends on the
/// layers below only, so images with a common base share its files.
std::vector<LayerRun> plan_runs(std::span<const std::uint64_t> sizes);
/// Name of the file that layers from the place `begin` up to `top` are merged into. It is made of
/// all blobs up to `top`, and is the name of no blob and of no fitted layer.
Digest merged_name(std::size_t begin, const LayerNames& top);
/// Which layers of an image the files of a record stand for; empty if they are not those of the
/// image.
std::optional<std::vector<LayerRun>> runs_of(std::span<const Digest> files,
                                             std::span<const LayerNames> layers);

/// A lock on a byte of the store's file `locks`. The kernel releases it when its holder dies.
class StoreLock {
 public:
  StoreLock(int file, std::int64_t offset) : file_(file), offset_(offset) {}
  StoreLock(StoreLock&& other) noexcept
      : file_(std::exchange(other.file_, -1)), offset_(other.offset_) {}
  StoreLock& operator=(StoreLock&&) = delete;
  ~StoreLock();

 private:
  int file_;  // the store's
  std::int64_t offset_;
};

/// Free space of the store's file system: bytes and inodes available to an ordinary user.
struct StoreSpace {
  std::uint64_t total = 0;
  std::uint64_t used = 0;
  std::uint64_t free = 0;
  std::uint64_t free_inodes = 0;
};

/// The store as used by `import`: reads everything, writes what concerns access into images/, and
/// has its keeper write what containers are made of. Layers are identified by their names
/// (layer_name()).
class ImageStore {
 public:
  /// `directory` and `keeper` are borrowed. Without a keeper it is a store of the caller's own.
  static Result<ImageStore> open(int directory, StoreKeeper* keeper = nullptr);

  /// For messages.
  [[nodiscard]] const std::string& path() const { return path_; }

  // --- layers ---
  [[nodiscard]] bool has_layer(const Digest& name) const;
  /// While the descriptor is open, the layer is not removed from the store. Empty: there is no such
  /// layer.
  [[nodiscard]] UniqueFd hold_layer(const Digest& name) const;
  /// Used by a container or an import.
  [[nodiscard]] bool is_layer_in_use(const Digest& name) const;
  /// Held while a layer is pulled, so that only one process on the node does it. Empty if another
  /// one does.
  Result<std::optional<StoreLock>> try_lock(const Digest& layer) const;
  /// Who holds that lock says "yes" and "no" in turn: if he is silent he was stopped, and nobody
  /// needs to wait for him.
  void pulse(const Digest& layer, bool yes) const;
  [[nodiscard]] bool pulse_of_others(const Digest& layer) const;
  /// One of the user's `slots` concurrent imports. Empty if all are taken.
  Result<std::optional<StoreLock>> try_slot(std::uint32_t uid, std::uint32_t slots) const;

  /// A nameless file on the store's file system for blobs that are passed on to other nodes; it can
  /// never become an object.
  Result<UniqueFd> new_spool() const;

  /// Whether this origin has proven, byte by byte, that it has the layer.
  [[nodiscard]] bool was_delivered(const Digest& layer, const std::string& origin) const;
  Result<void> forget_deliveries(const Digest& layer) const;
  Result<void> note_delivery(const Digest& layer, const std::string& origin) const;

  // --- images ---
  /// Empty if there is no record, or a damaged one or one of another format, which will be
  /// replaced.
  Result<std::optional<ImageRecord>> image(const Digest& manifest) const;
  /// It survives a crash of the node.
  Result<void> write_image(const Digest& manifest, const ImageRecord& record) const;
  /// Until when (seconds since 1970) everybody may use the image without a query to the registry;
  /// 0: it is private.
  [[nodiscard]] std::int64_t public_until(const Digest& manifest) const;
  Result<void> set_public_until(const Digest& manifest, std::int64_t when) const;
  Result<ImageOrigins> origins(const Digest& manifest) const;
  Result<void> write_origins(const Digest& manifest, const ImageOrigins& origins) const;
  /// The signatures that have admitted it, as signature/kept_signatures.hpp writes them; empty:
  /// none.
  Result<std::string> signatures(const Digest& manifest) const;
  Result<void> write_signatures(const Digest& manifest, std::string_view records) const;
  /// Removes its record, then what is known of its origins and signatures.
  Result<void> remove_image(const Digest& manifest) const;
  /// Marks it as used now: it is evicted last. In the node's store the agent does so.
  void touch_image(const Digest& manifest) const;

  // --- names ---
  /// What a name (ref_file_of() a reference) means; only public images have one, which everybody
  /// can read.
  [[nodiscard]] std::optional<NamedImage> public_name(const std::string& name) const;
  Result<void> write_name(const NamedImage& image) const;
  Result<void> remove_name(const std::string& name) const;
  /// The name has just passed the site's rules: while these are unchanged, tasks may start with it
  /// without `import`.
  void touch_name(const std::string& name) const;

  /// A grant: the registry has let this user have what the name means, at that time.
  [[nodiscard]] std::optional<NamedImage> grant(std::uint32_t uid, const std::string& name) const;
  Result<void> write_grant(std::uint32_t uid, const NamedImage& image) const;
  /// All names of these images, and all users' grants.
  Result<void> forget_names(const std::set<Digest>& manifests) const;

  // --- for eviction: inventory.hpp, eviction.hpp ---
  [[nodiscard]] Result<StoreSpace> space() const;
  [[nodiscard]] int directory() const { return directory_; }
  [[nodiscard]] int records() const { return records_.get(); }
  [[nodiscard]] int images() const { return images_.get(); }

 private:
  ImageStore(int directory, std::string path, StoreKeeper* keeper);
  Result<std::optional<StoreLock>> try_lock_byte(std::int64_t offset) const;

  int directory_;
  std::string path_;
  std::unique_ptr<StoreKeeper> own_;
  StoreKeeper* keeper_;
  UniqueFd records_;
  UniqueFd names_;
  UniqueFd grants_;
  UniqueFd images_;
  UniqueFd locks_;
};

}  // namespace spc
