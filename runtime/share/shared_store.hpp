#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- lease ---

/// Returns 16 random hexadecimal digits, unique in practice.
std::string random_text();

/// The right to do a piece of work for all nodes: a small file on a shared file system. It needs no
/// flock and no clock but the node's own. The holder rewrites it once a second. A waiting process
/// takes it over when it has not changed for five seconds. Two holders do no harm, because their
/// results have the same name and the same bytes.
class Lease {
 public:
  Lease(Lease&& other) noexcept
      : directory_(std::exchange(other.directory_, -1)),
        name_(std::move(other.name_)),
        token_(std::move(other.token_)),
        note_(std::move(other.note_)),
        count_(other.count_),
        next_(other.next_) {}
  Lease& operator=(Lease&&) = delete;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  /// Releases the lease.
  ~Lease();

  /// Renews the lease. Call often: it writes at most once a second.
  void beat();
  /// Publishes a note for waiting processes at once. The note has no blanks at its ends.
  void tell(std::string note);

 private:
  friend Result<std::optional<Lease>> take_lease(int directory, const std::string& name,
                                                 class WatchedLease& others);
  using Clock = std::chrono::steady_clock;
  Lease(int directory, std::string name, std::string token)
      : directory_(directory),
        name_(std::move(name)),
        token_(std::move(token)),
        next_(Clock::now()) {}

  int directory_;  // borrowed, -1 after a move
  std::string name_, token_, note_;
  std::uint64_t count_ = 0;
  Clock::time_point next_{};
};

/// Snapshot of another process's lease.
class WatchedLease {
 public:
  /// Returns whether its holder has died or stopped: `content` has not changed for five seconds.
  bool is_stale(std::string content);
  /// Returns the holder's note as last read. Untrusted text.
  [[nodiscard]] std::string note() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<std::string> content_;
  Clock::time_point since_{};
};

/// Acquires a lease. Empty: another process holds it. Error: the file cannot be created.
Result<std::optional<Lease>> take_lease(int directory, const std::string& name,
                                        WatchedLease& others);

// --- image in place ---

/// A note in the shared store on an image whose layers nodes use in place. Its writer vouches that
/// `place` has delivered the image and that its layers have these bytes.
struct ImageInPlace {
  struct Layer {
    Digest name;              ///< as in a node's store
    std::uint64_t bytes = 0;  ///< of its file, without the digest at the end
    Digest hashes;            ///< SHA-256 of its list of hashes (protocol/fuse.hpp)
  };

  Digest manifest;
  std::string place, form;
  std::vector<Layer> layers;  ///< bottom layer first
  std::string facts;          ///< records of convert/facts.hpp

  /// Returns the text that a site signs.
  [[nodiscard]] std::string serialize() const;
  static Result<ImageInPlace> parse(std::string_view text);
};

// --- shared store ---

/// `[shared]` of config.toml: a directory on a file system that all nodes see, with blobs and
/// manifests as the registries delivered them. A node searches it before it asks a registry, so
/// that the first node's pull serves all nodes.
class SharedStore {
 public:
  /// Creates the subdirectories. Error: the directory is missing, or is not owned by the calling
  /// user with access for that user only. `max_size`: bytes of all blobs, 0 for no limit. `grace`:
  /// seconds for which removed layers stay readable for nodes that use them in place.
  static Result<SharedStore> open(const std::string& directory, std::uint64_t max_size,
                                  std::int64_t grace = 0);

  /// Returns the path as configured by the site.
  [[nodiscard]] const std::string& directory() const { return directory_; }

  /// Opens a complete blob that this place has delivered, and updates its times to mark the use.
  /// Empty: it must be fetched from the place. A blob of another size does not count.
  [[nodiscard]] UniqueFd find(const Digest& blob, std::uint64_t size, std::string_view place) const;
  /// Reads a document of at most `limit` bytes under the same conditions, and verifies its digest.
  [[nodiscard]] std::optional<std::string> document(const Digest& digest, std::size_t limit,
                                                    std::string_view place) const;
  /// Adds a document of this digest. Failures are ignored: the next node fetches it again.
  void add_document(const Digest& digest, std::string_view bytes, std::string_view place) const;

  /// Opens a blob that another node is writing. `name` is the lease's note (NewBlob::name()). Empty
  /// if the file does not exist.
  [[nodiscard]] UniqueFd follow(const std::string& name, const Digest& blob) const;

  /// Publishes such a file after it was read to its end and its digest was verified, in case its
  /// writer has died.
  void adopt(const std::string& name, const Digest& blob, std::string_view place) const;

  /// Acquires the lease to fetch a blob from this place. Empty: another process holds it. Fetches
  /// from other places are not awaited, because their registry may be slow on purpose. Error:
  /// leases cannot be written.
  [[nodiscard]] Result<std::optional<Lease>> lease(const Digest& blob, std::string_view place,
                                                   WatchedLease& others) const;

  /// A blob that is being written. Removed unless published.
  class NewBlob {
   public:
    NewBlob(NewBlob&& other) noexcept = default;
    NewBlob& operator=(NewBlob&&) = delete;
    NewBlob(const NewBlob&) = delete;
    NewBlob& operator=(const NewBlob&) = delete;
    ~NewBlob();

    [[nodiscard]] int file() const { return file_.get(); }
    /// Returns the name under which other nodes can read it while it is written.
    [[nodiscard]] const std::string& name() const { return name_; }
    /// Publishes the complete blob, whose digest was verified. Waits for the disk.
    Result<void> publish(std::string_view place);

   private:
    friend class SharedStore;
    NewBlob(const SharedStore& store, const Digest& blob, std::string name, UniqueFd file)
        : store_(store), blob_(blob), name_(std::move(name)), file_(std::move(file)) {}
    const SharedStore& store_;
    Digest blob_;
    std::string name_;  // in tmp/
    UniqueFd file_;     // empty after a move or when published
  };
  /// Creates a blob, and removes the least recently used ones if the limit is near. Error: it
  /// exceeds the limit, or cannot be created.
  [[nodiscard]] Result<NewBlob> new_blob(const Digest& blob, std::uint64_t size) const;

  /// Removes a blob that was found damaged.
  void remove(const Digest& blob) const;

  // --- converted layers: `[shared] keep = "layers"`; trusts every process that can write here ---
  struct Layer {
    std::string form;  ///< version, file system and compression, used as directory name
    Digest name;       ///< in a node's store
    /// source of the layer: only places that have delivered it may use the layer
    Digest blob;
    std::string place;
  };
  [[nodiscard]] bool has_layer(const Layer& layer) const;
  /// Copies the layer into an empty file. Returns false if it is not there. Error: it was damaged
  /// and has been removed, or `to` cannot be written.
  [[nodiscard]] Result<bool> copy_layer(const Layer& layer, int to) const;
  /// Stores the file as this layer, unless the layer is there.
  Result<void> keep_layer(const Layer& layer, int from) const;
  void remove_layer(const Layer& layer) const;

  // --- images in place: `[shared] use = "in-place"` ---
  /// Stores the file as this layer, unless the layer is there, with the list of its hashes.
  [[nodiscard]] Result<ImageInPlace::Layer> place_layer(const Layer& layer, int from) const;
  /// Publishes the note of an image, whose layers are there. `signature`: of its text; may be
  /// empty.
  Result<void> note_image(const ImageInPlace& image, std::string_view signature) const;
  /// A note as read. Any process that can write here may have written it.
  struct ImageNote {
    std::string text, signature;
  };
  [[nodiscard]] std::optional<ImageNote> image_note(const Digest& manifest, std::string_view place,
                                                    std::string_view form) const;
  struct OpenLayer {
    UniqueFd file, hashes;
  };
  /// Opens a layer to use it in place, and marks the use. Error: it is not there.
  [[nodiscard]] Result<OpenLayer> open_layer(const ImageInPlace& image,
                                             const ImageInPlace::Layer& layer) const;

  // --- administration ---
  struct Blob {
    Digest digest;
    std::uint64_t bytes = 0;
    std::int64_t used_at = 0;  ///< seconds since 1970
  };
  /// Returns all complete blobs, the least recently used first.
  [[nodiscard]] std::vector<Blob> blobs() const;
  /// Reads a document of at most `limit` bytes, from any place. Does not mark it as used.
  [[nodiscard]] std::optional<std::string> look_at(const Digest& digest, std::size_t limit) const;
  /// Returns the places (registry and repository) that have delivered each blob.
  [[nodiscard]] std::map<Digest, std::vector<std::string>> places() const;

  struct Removed {
    std::size_t files = 0;    ///< blobs and layers
    std::uint64_t bytes = 0;  ///< of these
    std::size_t strays = 0;   ///< files and leases of dead nodes
  };
  /// Removes leftovers of dead nodes, blobs unused for `unused_for` seconds (0: of any age), and
  /// more until the limit is met. `dry`: only reports what would be removed.
  [[nodiscard]] Removed clean(std::int64_t unused_for, bool dry) const;

 private:
  SharedStore() = default;
  [[nodiscard]] bool has_delivered(std::string_view place, const Digest& blob) const;
  void note_delivery(std::string_view place, const Digest& blob) const;
  struct File;
  /// Adds the files below `directory`/`form`, and sorts all, the least recently used first.
  static void add_files(std::vector<File>& all, int directory, const std::string& form);
  [[nodiscard]] std::vector<File> files() const;
  void limit_trash() const;
  [[nodiscard]] std::int64_t time_there() const;
  [[nodiscard]] std::size_t remove_strays(std::int64_t now, bool dry) const;
  bool remove_file(int directory, const std::string& path) const;
  [[nodiscard]] Removed evict(std::uint64_t needed, std::int64_t used_before, bool dry) const;
  void make_room(std::uint64_t needed, std::int64_t now) const;

  std::string directory_;
  std::uint64_t max_size_ = 0;
  std::int64_t grace_ = 0;
  /// leftovers of dead nodes were removed, once per process
  mutable bool has_removed_strays_ = false;
  UniqueFd blobs_, layers_, images_, delivered_, leases_, temporary_, trash_;
};

}  // namespace spc
