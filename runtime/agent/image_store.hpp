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

/// A squashfs served by a process of the user, because the kernel must not or cannot read it; see
/// protocol/fuse.hpp.
struct ServedLayer {
  UniqueFd device;  ///< /dev/fuse; close it after the mount: a server's death ends a connection
                    ///< that has no other holder
  int status = -1;  ///< the agent's end of its socket
};

/// The parts of a root file system, bottom layer first: layers of the store. The leader passes a
/// directory instead, and `fuse` serves other layers.
struct ImageFiles {
  UniqueFd record;  ///< for the task, in the form of protocol/image_record.hpp; empty for a file or
                    ///< directory, which has its own settings
  std::vector<LayerFile> layers;
};

/// Opens a read-only file owned by root for reading. No other user can have written to it since it
/// got this name. `what`: the object, for errors.
Result<UniqueFd> open_object(int directory, const std::string& name, const std::string& what);

enum class Audience { everyone, whoever_import_admitted };

/// The agent's view of the store: opens objects by digest and publishes finished files. It reads no
/// image data.
class ImageStore {
 public:
  static Result<ImageStore> open(const char* directory);

  /// Returns the store's directory (O_PATH), for `import`.
  [[nodiscard]] int directory() const { return directory_.get(); }
  /// Returns the owner of images/: the service user that handles image data.
  [[nodiscard]] unsigned service_uid() const { return service_uid_; }
  [[nodiscard]] unsigned service_gid() const { return service_gid_; }

  /// Opens the image and all its layers, none of an image in place. ErrorKind::not_found if it or a
  /// layer is missing, ErrorKind::refused if it is not public (any more) and the audience is
  /// everyone.
  [[nodiscard]] Result<ImageFiles> open_image(const Digest& manifest, Audience audience) const;

  /// Opens the image of this record and layer directory.
  static Result<ImageFiles> open_files(UniqueFd record, int layers);

  /// Creates an unnamed file; it vanishes with its last descriptor unless it is published.
  [[nodiscard]] Result<UniqueFd> new_object() const;
  /// Returns a file from new_object() reopened read-only. No process can write to it any more.
  [[nodiscard]] Result<UniqueFd> freeze(UniqueFd file) const;
  /// Links a frozen file, which must be on disk, at this path below the store's directory, unless
  /// the path exists.
  [[nodiscard]] Result<void> publish(int frozen, const std::string& path) const;
  /// Replaces the file at this path by the frozen file; -1 removes it.
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
