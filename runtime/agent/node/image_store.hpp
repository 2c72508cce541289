#pragma once

#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::agent {

struct LayerFile {
  UniqueFd file;  ///< read-only; locked, so that nobody evicts it; usable even if somebody did
  Digest digest;
};

/// A squashfs that a process of the user serves, because the kernel must or can not read it: see protocol/fuse.hpp.
struct ServedLayer {
  UniqueFd
      device;  ///< /dev/fuse; to be closed once it is mounted: the death of a server ends a connection that nobody else holds
  UniqueFd status;
};

/// What a root file system is made of, bottom layer first: layers of the store, or else what is served, or else a directory.
struct ImageFiles {
  UniqueFd record;  ///< for the task, in the form of protocol/image_record.hpp; never looked at
  std::vector<LayerFile> layers;
  std::vector<ServedLayer> served;
  UniqueFd directory;
};

enum class Audience { everyone, whoever_import_admitted };

/// The name of a layer in a directory of them.
std::string layer_file_name(const Digest& layer);

/// The agent's view of the store: it opens objects by digest and gives finished files their names. It reads no image byte.
class ImageStore {
 public:
  static Result<ImageStore> open(const char* directory);

  /// For `import`: the store's directory (O_PATH).
  [[nodiscard]] int directory() const { return directory_.get(); }
  /// Who owns images/: the service user that may handle image bytes.
  [[nodiscard]] unsigned service_uid() const { return service_uid_; }
  [[nodiscard]] unsigned service_gid() const { return service_gid_; }

  /// Opens the image and all its layers. ErrorKind::not_found when it or a layer is not there, ErrorKind::refused when
  /// it is not public (any more) and the audience is everyone.
  [[nodiscard]] Result<ImageFiles> open_image(const Digest& manifest, Audience audience) const;

  /// The same for a record and a directory of layers.
  static Result<ImageFiles> open_files(UniqueFd record, int layers, Audience audience);

  /// A new layer file without a name; it vanishes with its last descriptor unless it is published.
  [[nodiscard]] Result<UniqueFd> new_layer() const;
  /// A file from new_layer(), read-only, that provably nobody can write to any more.
  [[nodiscard]] Result<UniqueFd> freeze(UniqueFd file) const;
  /// Gives a frozen file the name of its blob, unless there is one already.
  [[nodiscard]] Result<void> publish(int frozen, const Digest& blob) const;
  /// Takes the layer out of the store; ErrorKind::unavailable when it is in use.
  [[nodiscard]] Result<void> evict(const Digest& blob) const;

 private:
  UniqueFd directory_;
  UniqueFd layers_;
  UniqueFd images_;
  unsigned service_uid_ = 0;
  unsigned service_gid_ = 0;
};

}  // namespace spc::agent
