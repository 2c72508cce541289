#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/shared/lease.hpp"

namespace spc {

/// `[shared]` of config.toml: a directory on a file system that all nodes see, with blobs and
/// manifests as registries gave them. A node looks there before it asks a registry for one, so that
/// the first node's pull serves all.
///
///   blobs/sha256/<hex>      complete: renamed when its digest was right and its bytes were on the
///   disk delivered/<place>/<hex> empty: this place (a hash of registry and repository) has
///   delivered that blob in full delivered/<place>/name  registry and repository, for who wants to
///   read it layers/<form>/<hex>     a converted layer and its SHA-256, if the site has nodes
///   believe each other about these leases/<hex>.<place>    somebody is bringing it from that
///   place: image/shared/lease.hpp tmp/<hex>.<random>      what is being written
///
/// All of it is the service user's. Of blobs it is believed nothing: who reads one hashes it, as if
/// it came from a mirror. Nothing here needs flock, O_TMPFILE or the clock of another machine,
/// which parallel file systems may not have.
class SharedStore {
 public:
  /// Makes the directories in it. Error: it is not there, or is not a directory of the calling user
  /// that nobody else can enter. `max_size`: bytes of all blobs, 0: no limit.
  static Result<SharedStore> open(const std::string& directory, std::uint64_t max_size);

  /// As the site wrote it.
  [[nodiscard]] const std::string& directory() const { return directory_; }

  /// A complete blob, open for reading, that this place has delivered; its times say that it was
  /// used. Empty: it must come from there, also because it has another size.
  [[nodiscard]] UniqueFd find(const Digest& blob, std::uint64_t size, std::string_view place) const;
  /// The same of a document of at most `limit` bytes; only if it has this digest.
  [[nodiscard]] std::optional<std::string> document(const Digest& digest, std::size_t limit,
                                                    std::string_view place) const;
  /// Adds a document of this digest. Whether it could be is of no interest: the next node fetches
  /// it again.
  void add_document(const Digest& digest, std::string_view bytes, std::string_view place) const;

  /// A blob that another node is bringing, as far as it has come: what the lease tells
  /// (NewBlob::name()). Empty: there is no such file.
  [[nodiscard]] UniqueFd follow(const std::string& name, const Digest& blob) const;

  /// Such a file was read to its end, and had the digest. If whoever brought it has died since, it
  /// is put under its name.
  void adopt(const std::string& name, const Digest& blob, std::string_view place) const;

  /// The right to bring a blob from this place; empty: somebody else has it. Who brings it from
  /// elsewhere is nobody to wait for: his registry may be slow on purpose. Error: leases cannot be
  /// written.
  [[nodiscard]] Result<std::optional<Lease>> lease(const Digest& blob, std::string_view place,
                                                   WatchedLease& others) const;

  /// A blob that is being written. It is removed unless it is published.
  class NewBlob {
   public:
    NewBlob(NewBlob&& other) noexcept = default;
    NewBlob& operator=(NewBlob&&) = delete;
    NewBlob(const NewBlob&) = delete;
    NewBlob& operator=(const NewBlob&) = delete;
    ~NewBlob();

    [[nodiscard]] int file() const { return file_.get(); }
    /// What others need, to read it while it is written.
    [[nodiscard]] const std::string& name() const { return name_; }
    /// Everything is written, and has the digest. Waits for the disk.
    Result<void> publish(std::string_view place);

   private:
    friend class SharedStore;
    NewBlob(const SharedStore& store, const Digest& blob, std::string name, UniqueFd file)
        : store_(store), blob_(blob), name_(std::move(name)), file_(std::move(file)) {}
    const SharedStore& store_;
    Digest blob_;
    std::string name_;  // in tmp/
    UniqueFd file_;     // empty: it was moved, or is published
  };
  /// Removes what was not used for longest where the limit is near. Error: it is larger than all of
  /// it may be, or cannot be made.
  [[nodiscard]] Result<NewBlob> new_blob(const Digest& blob, std::uint64_t size) const;

  /// It was found damaged.
  void remove(const Digest& blob) const;

  // --- converted layers: whoever can write here says what is in them. `[shared] keep = "layers"`
  // ---
  struct Layer {
    std::string form;  ///< version, file system and compression: a directory's name
    Digest name;       ///< in a node's store
    Digest blob;       ///< that it was made of: counts for those places only that have delivered it
    std::string place;
  };
  [[nodiscard]] bool has_layer(const Layer& layer) const;
  /// Writes it into an empty file. False: it is not there. Error: it was damaged, and is removed,
  /// or `to` cannot be written.
  [[nodiscard]] Result<bool> copy_layer(const Layer& layer, int to) const;
  /// Puts the file there under the layer's name, unless it is there.
  Result<void> keep_layer(const Layer& layer, int from) const;
  void remove_layer(const Layer& layer) const;

  // --- for administrators ---
  struct Blob {
    Digest digest;
    std::uint64_t bytes = 0;
    std::int64_t used_at = 0;  ///< seconds since 1970
  };
  /// All that are complete; the one that was not used for longest first.
  [[nodiscard]] std::vector<Blob> blobs() const;
  /// A document of at most `limit` bytes, wherever it came from; that it was looked at is no use of
  /// it.
  [[nodiscard]] std::optional<std::string> look_at(const Digest& digest, std::size_t limit) const;
  /// Which places have delivered a blob: registry and repository each.
  [[nodiscard]] std::map<Digest, std::vector<std::string>> places() const;

  struct Removed {
    std::size_t files = 0;    ///< blobs and layers
    std::uint64_t bytes = 0;  ///< of these
    std::size_t strays = 0;   ///< files and leases of dead nodes
  };
  /// Removes what dead nodes left, what nobody has used for so many seconds (0: any time), and more
  /// until the limit is kept. `dry`: only says what that would be.
  [[nodiscard]] Removed clean(std::int64_t unused_for, bool dry) const;

 private:
  SharedStore() = default;
  [[nodiscard]] bool has_delivered(std::string_view place, const Digest& blob) const;
  void note_delivery(std::string_view place, const Digest& blob) const;
  struct File;
  [[nodiscard]] std::vector<File> files() const;
  [[nodiscard]] std::int64_t time_there() const;
  [[nodiscard]] std::size_t remove_strays(std::int64_t now, bool dry) const;
  [[nodiscard]] Removed evict(std::uint64_t needed, std::int64_t used_before, bool dry) const;
  void make_room(std::uint64_t needed, std::int64_t now) const;

  std::string directory_;
  std::uint64_t max_size_ = 0;
  mutable bool has_removed_strays_ = false;  ///< what dead nodes left; once is enough
  UniqueFd blobs_, layers_, delivered_, leases_, temporary_;
};

}  // namespace spc
