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
#include "protocol/image_record.hpp"
#include "reference/reference.hpp"

namespace spc {

// --- record ---

/// The content of a file in records/; protocol/image_record.hpp has the format.
struct ImageRecord {
  std::uint32_t layer_format = 0;
  std::vector<Digest> layers;  ///< names in layers/sha256/, bottom layer first
  std::string settings;        ///< records `key=value\0`
  std::string manifest;
  std::string config;
  bool in_place = false;  ///< its layers are not here but in the shared store
};

std::string serialize(const ImageRecord& record);
Result<ImageRecord> parse_image_record(std::string_view bytes);

/// The origin of an image: a repository in a registry, or a user who provided it.
struct ImageOrigin {
  std::string registry;
  std::string repository;
  /// user of a local image; registry and repository are then empty
  std::optional<std::uint32_t> user;
  std::string name;  ///< the full name of the last request
  std::string platform;
  /// Time (seconds since 1970) until which this origin serves the image to everybody. 0: private.
  std::int64_t public_until = 0;

  /// Returns the origin as one text without spaces: `registry:5000/team/app` or `user=1000`.
  [[nodiscard]] std::string place() const;
};

/// The content of images/origins/<hex>: each origin that has proven to have every byte of the
/// image. Readable by the service user only. It determines access to the image, never which image a
/// name means, so its writer cannot make other users run a different image.
class ImageOrigins {
 public:
  [[nodiscard]] const std::vector<ImageOrigin>& all() const { return all_; }
  /// Returns null if the image did not come from there.
  [[nodiscard]] const ImageOrigin* find(std::string_view place) const;
  /// Adds or replaces an origin.
  void add(ImageOrigin origin);
  /// Returns the latest time of all origins.
  [[nodiscard]] std::int64_t public_until() const;

  [[nodiscard]] std::string serialize() const;
  /// Skips unreadable entries: they must be proven again.
  static ImageOrigins parse(std::string_view bytes);

 private:
  std::vector<ImageOrigin> all_;
};

/// Returns the values of `key=value\0` records (such as ImageRecord::settings), in order.
std::vector<std::string> setting_values(const std::string& settings, std::string_view key);

// --- store files ---

// Small files in a directory of the store owned by the caller. Names are generated, without '/'.
// Links are not followed.

/// Reads the whole file. Returns an empty optional if it does not exist.
Result<std::optional<std::string>> read_named(int directory, const std::string& name,
                                              std::size_t limit);

enum class Durable { yes, no };

/// Creates or replaces a file: writes it without a name and links it when complete. Readable for
/// everybody who can reach it. `durable`: it survives a crash of the node.
Result<void> write_named(int directory, const std::string& name, std::string_view bytes,
                         Durable durable);

/// Removes a file. A missing one is not an error.
Result<void> remove_named(int directory, const std::string& name);

/// Opens a directory of mode 0700, creating it if necessary.
Result<UniqueFd> open_private_directory(int parent, const std::string& name);

/// As read_named(), in a subdirectory that may be missing.
Result<std::optional<std::string>> read_below(int parent, const std::string& directory,
                                              const std::string& name, std::size_t limit);

/// Returns the names in a directory, except those starting with a dot.
Result<std::vector<std::string>> names_in(int directory);

/// Returns the names of files that are missing because their writer (write_named, or the agent's
/// put) was killed before the last step. remove_named() and the next writer remove the leftovers.
std::vector<std::string> names_left_in(int directory);

// --- store keeper ---

/// Publishes and removes store objects. In the node's store this is the agent, which owns the
/// store.
class StoreKeeper {
 public:
  virtual ~StoreKeeper() = default;
  /// Replaces the image's record.
  virtual Result<void> publish_record(const Digest& manifest, std::string_view bytes) = 0;
  virtual Result<void> remove_record(const Digest& manifest) = 0;
  /// Writes the meaning of a name (reference/reference.hpp), for everybody or for one user. An
  /// empty text removes it.
  virtual Result<void> set_name(const Digest& key, std::optional<std::uint32_t> uid,
                                std::string_view means) = 0;
};

/// Keeper of a store that the caller owns.
class OwnStoreKeeper final : public StoreKeeper {
 public:
  /// `store` is borrowed.
  explicit OwnStoreKeeper(int store) : store_(store) {}
  Result<void> publish_record(const Digest& manifest, std::string_view bytes) override;
  Result<void> remove_record(const Digest& manifest) override;
  Result<void> set_name(const Digest& key, std::optional<std::uint32_t> uid,
                        std::string_view means) override;

 private:
  int store_;
};

// --- store ---

/// Raised whenever layer-writer's output for the same blob changes.
inline constexpr std::uint32_t kLayerFormat = 3;

/// Returns a layer's name in layers/sha256/. Names differ per format, so that programs of two
/// versions never use each other's layers, in whichever order they run. Unused ones are evicted
/// like any other. (A name is a digest with a constant added by XOR: a collision would take a
/// preimage.)
Digest layer_name(const Digest& blob, std::uint32_t format = kLayerFormat);

/// Names of an image's layer in the store. A layer fitted to those below it can only be used in
/// images that begin with the same layers, so it has a name of its own.
struct LayerNames {
  Digest alone;
  Digest fitted;
};
/// Returns a manifest's layers without repetitions, at their topmost position: overlayfs accepts
/// none twice, and the topmost one takes precedence.
std::vector<Digest> distinct_layers(std::span<const Digest> blobs);
/// Returns the names of all layers of an image, by their distinct blobs, bottom layer first. A blob
/// and a fitted layer never share a name: that would take two contents whose digests differ in all
/// bits.
std::vector<LayerNames> layer_names(std::span<const Digest> blobs,
                                    std::uint32_t format = kLayerFormat);

/// Consecutive layers of an image that are one file in the store: the places in [begin, end).
struct LayerRun {
  std::size_t begin = 0, end = 0;
  [[nodiscard]] bool is_merged() const { return end - begin > 1; }
  bool operator==(const LayerRun&) const = default;
};
/// Chooses the layers to merge, by the sizes of their distinct blobs: small layers of an image with
/// more than 16 layers, so that it needs few mounts. The bounds of runs depend only on the layers
/// below, so images with a common base share the merged files.
std::vector<LayerRun> plan_runs(std::span<const std::uint64_t> sizes);
/// Returns the name of the file that layers from the place `begin` up to `top` are merged into. It
/// depends on all blobs up to `top`, and differs from the names of blobs and fitted layers.
Digest merged_name(std::size_t begin, const LayerNames& top);
/// Returns the runs that the files of a record represent. Empty if the files do not belong to the
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
  int file_;  // borrowed from the store
  std::int64_t offset_;
};

/// Free space of the store's file system: bytes and inodes available to an ordinary user.
struct StoreSpace {
  std::uint64_t total = 0;
  std::uint64_t used = 0;
  std::uint64_t free = 0;
  std::uint64_t free_inodes = 0;
};

/// Directory of the descriptions of public images (protocol/store_layout.hpp).
inline constexpr char kPublicImages[] = "public";

/// The store as used by `import`: reads everything, writes access data into images/, and has its
/// keeper write the data that containers are made of. Layers are identified by their names
/// (layer_name()).
class ImageStore {
 public:
  /// `directory` and `keeper` are borrowed. Without a keeper the caller owns the store.
  static Result<ImageStore> open(int directory, StoreKeeper* keeper = nullptr);

  /// Path for messages.
  [[nodiscard]] const std::string& path() const { return path_; }

  // --- layers ---
  [[nodiscard]] bool has_layer(const Digest& name) const;
  /// Opens a layer. It is not removed from the store while the descriptor is open. Empty if there
  /// is no such layer.
  [[nodiscard]] UniqueFd hold_layer(const Digest& name) const;
  /// Creates the file of a layer, without a name. Both for the owner of the store.
  Result<UniqueFd> new_layer() const;
  /// Names a layer's complete file. Keeps an existing file of this name.
  Result<void> publish_layer(int file, const Digest& name) const;
  /// Returns whether a container or an import uses the layer.
  [[nodiscard]] bool is_layer_in_use(const Digest& name) const;
  /// Acquires the lock for pulling a layer, so that only one process on the node does it. Empty if
  /// another one holds it.
  Result<std::optional<StoreLock>> try_lock(const Digest& layer) const;
  /// Writes the heartbeat of that lock's holder, alternately true and false. A holder whose
  /// heartbeat stops was stopped, and is not waited for.
  void pulse(const Digest& layer, bool yes) const;
  [[nodiscard]] bool pulse_of_others(const Digest& layer) const;
  /// Acquires one of the user's `slots` for concurrent imports. Empty if all are taken.
  Result<std::optional<StoreLock>> try_slot(std::uint32_t uid, std::uint32_t slots) const;

  /// Creates a nameless file on the store's file system for blobs that are passed on to other
  /// nodes. It can never become an object.
  Result<UniqueFd> new_spool() const;

  /// Returns whether this origin has proven, byte by byte, that it has the layer.
  [[nodiscard]] bool was_delivered(const Digest& layer, const std::string& origin) const;
  Result<void> forget_deliveries(const Digest& layer) const;
  Result<void> note_delivery(const Digest& layer, const std::string& origin) const;

  // --- images ---
  /// Reads a record. Empty if it is missing, damaged or of another format; it is then replaced.
  Result<std::optional<ImageRecord>> image(const Digest& manifest) const;
  /// Writes a record, which survives a crash of the node.
  Result<void> write_image(const Digest& manifest, const ImageRecord& record) const;
  /// Returns the time (seconds since 1970) until which everybody may use the image without a query
  /// to the registry. 0: private.
  [[nodiscard]] std::int64_t public_until(const Digest& manifest) const;
  Result<void> set_public_until(const Digest& manifest, std::int64_t when) const;
  Result<ImageOrigins> origins(const Digest& manifest) const;
  Result<void> write_origins(const Digest& manifest, const ImageOrigins& origins) const;
  /// Describes a public image for users who may not read its record; `platform` is its platform.
  /// Does nothing in a store without a directory for that.
  Result<void> write_public(const Digest& manifest, ImageRecord record,
                            const std::string& platform) const;
  Result<void> remove_public(const Digest& manifest) const;
  /// Returns the signatures that have admitted the image, as stored by Admission. Empty if there
  /// are none.
  Result<std::string> signatures(const Digest& manifest) const;
  Result<void> write_signatures(const Digest& manifest, std::string_view records) const;
  /// Removes the image's record, then its origins, signatures and public description.
  Result<void> remove_image(const Digest& manifest) const;
  /// Marks the image as used now, so that it is evicted last. In the node's store the agent does
  /// so.
  void touch_image(const Digest& manifest) const;

  // --- names ---
  /// Returns the image that a name (ref_file_of() a reference) means. Only public images have
  /// names, which everybody can read.
  [[nodiscard]] std::optional<NamedImage> public_name(const std::string& name) const;
  Result<void> write_name(const NamedImage& image) const;
  Result<void> remove_name(const std::string& name) const;
  /// Records that the site's rules have just admitted the name. While the rules are unchanged,
  /// tasks may start with it without `import`.
  void touch_name(const std::string& name) const;

  /// Returns a grant: the registry gave this user access to the named image, at the recorded time.
  [[nodiscard]] std::optional<NamedImage> grant(std::uint32_t uid, const std::string& name) const;
  Result<void> write_grant(std::uint32_t uid, const NamedImage& image) const;
  /// Removes all names of these images, and all users' grants.
  Result<void> forget_names(const std::set<Digest>& manifests) const;

  // --- access for eviction ---
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
  UniqueFd public_;
  UniqueFd locks_;
};

// --- inventory ---

/// Storage data of an image's record. Times are seconds since 1970.
struct StoredRecord {
  Digest manifest;
  std::int64_t public_until = 0;
  std::int64_t last_used = 0;
  std::uint32_t layer_format = 0;
  std::vector<Digest> layers;  ///< names, bottom layer first
};

struct StoredLayer {
  Digest name;
  std::uint64_t bytes = 0;  ///< disk usage
  std::int64_t written = 0;
};

/// A snapshot of the store. Damaged records, records of an older version and leftovers of killed
/// writers are listed without layers.
struct StoreInventory {
  std::vector<StoredRecord> images;
  std::vector<StoredLayer> layers;
};

Result<std::vector<StoredRecord>> list_records(const ImageStore& store);
Result<StoreInventory> take_inventory(const ImageStore& store);

}  // namespace spc
