#pragma once

#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

struct LayerFile {
  UniqueFd file;  ///< read-only; keeps the layer usable even if it is evicted meanwhile
  Digest digest;
};

struct StoredImage {
  UniqueFd record;                ///< the whole record, for the task; see base/image_record.hpp
  std::vector<LayerFile> layers;  ///< bottom layer first
};

enum class Audience { everyone, whoever_import_admitted };

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
  [[nodiscard]] Result<StoredImage> open_image(const Digest& manifest, Audience audience) const;

  /// A new layer file without a name; it vanishes with its last descriptor unless it is published.
  [[nodiscard]] Result<UniqueFd> new_layer() const;
  /// Gives a file from new_layer() the name of its blob. Fails while anybody could still write to it.
  [[nodiscard]] Result<void> publish(UniqueFd file, const Digest& blob) const;

 private:
  UniqueFd directory_;
  UniqueFd layers_;
  UniqueFd images_;
  unsigned service_uid_ = 0;
  unsigned service_gid_ = 0;
};

}  // namespace spc
