#pragma once

#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::agent {

struct LayerFile {
  UniqueFd file;  ///< read-only; locked against eviction; usable even if evicted
  Digest digest;
};

/// A squashfs served by a process of the user, because the kernel must not or cannot read it: see
/// protocol/fuse.hpp.
struct ServedLayer {
  UniqueFd device;  ///< /dev/fuse; close it once it is mounted: a server's death ends a connection
                    ///< that nobody else holds
  int status = -1;  ///< the agent's end of its socket
};

/// The parts of a root file system, bottom layer first: layers of the store, or served files. A
/// directory comes from the leader.
struct ImageFiles {
  UniqueFd record;  ///< for the task, in the form of protocol/image_record.hpp; empty: a file or
                    ///< directory, which has its settings itself
  std::vector<LayerFile> layers;
  std::vector<ServedLayer> served;
};

/// A read-only file of root's, opened for reading: no other user can have written to it since it
/// has this name. `what`: for the error.
Result<UniqueFd> open_object(int directory, const std::string& name, const std::string& what);

enum class Audience { everyone, whoever_import_admitted };

/// The agent's view of the store: it opens objects by digest and publishes finished files. It reads
/// no image data.
class ImageStore {
 public:
  static Result<ImageStore> open(const char* directory);

  /// For `import`: the store's directory (O_PATH).
  [[nodiscard]] int directory() const { return directory_.get(); }
  /// Owner of images/: the service user that handles image data.
  [[nodiscard]] unsigned service_uid() const { return service_uid_; }
  [[nodiscard]] unsigned service_gid() const { return service_gid_; }

  /// Opens the image and all its layers. ErrorKind::not_found if it or a layer is missing,
  /// ErrorKind::refused if it is not public (any more) and the audience is everyone.
  [[nodiscard]] Result<ImageFiles> open_image(const Digest& manifest, Audience audience) const;

  /// The same for a record and a layer directory.
  static Result<ImageFiles> open_files(UniqueFd record, int layers);

  /// A new unnamed file; it vanishes with its last descriptor unless it is published.
  [[nodiscard]] Result<UniqueFd> new_object() const;
  /// A file from new_object(), read-only, that nothing can write to any more.
  [[nodiscard]] Result<UniqueFd> freeze(UniqueFd file) const;
  /// Writes a frozen file back and gives it this path below the store's directory, unless something
  /// has it.
  [[nodiscard]] Result<void> publish(int frozen, const std::string& path) const;
  /// The frozen file in place of what has this path; -1: removes that.
  [[nodiscard]] Result<void> put(const std::string& path, int frozen) const;
  /// Removes the layer from the store; ErrorKind::unavailable if it is in use.
  [[nodiscard]] Result<void> evict(const Digest& blob) const;

 private:
  UniqueFd directory_;
  UniqueFd layers_;
  UniqueFd records_;
  UniqueFd images_;
  unsigned service_uid_ = 0;
  unsigned service_gid_ = 0;
};

}  // namespace spc::agent
