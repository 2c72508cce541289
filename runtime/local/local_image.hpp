#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "local/image_files.hpp"
#include "reference/location.hpp"

namespace spc::user_source {

// --- exports ---

/// These functions export one image of the user's storage, or of the node's docker daemon, to a
/// temporary archive that contains no other image.

/// Runs `podman save`, or skopeo if podman is not installed, as the user and without a shell.
Result<FilePart> export_from_podman(const std::string& image, Log& log);

/// Exports from the docker engine at the socket in $DOCKER_HOST (unix://PATH), or at
/// /var/run/docker.sock.
Result<FilePart> export_from_docker(const std::string& image, Log& log);

// --- local image ---

/// An image of the user in the common form: a document (manifest or index) and blobs named by
/// digest. Other formats (`docker save`, a tar of a root file system) get a generated document.
/// Layers are never copied.
class LocalImage {
 public:
  virtual ~LocalImage() = default;

  /// Opens the image as the user. Progress of long operations is written to `log`.
  static Result<std::unique_ptr<LocalImage>> open(const ImageLocation& location, Log& log);

  [[nodiscard]] virtual const FilePart& document() const = 0;
  /// Returns the blob, or an empty optional if the image does not have it.
  virtual Result<std::optional<FilePart>> blob(const Digest& digest) const = 0;
};

/// An image with a generated manifest. The same image always gives the same bytes.
class DescribedImage final : public LocalImage {
 public:
  struct Layer {
    Digest digest;  ///< digest of the bytes of `part`
    std::string media_type;
    FilePart part;
  };
  static Result<std::unique_ptr<LocalImage>> create(const std::string& config,
                                                    std::vector<Layer> layers);

  [[nodiscard]] const FilePart& document() const override { return document_; }
  Result<std::optional<FilePart>> blob(const Digest& digest) const override;

 private:
  FilePart document_;
  std::map<Digest, FilePart> blobs_;
};

// --- docker save archive ---

/// Opens the image `reference` (one of RepoTags) in an archive of the format of `docker save`
/// before version 25, which many builders still write: manifest.json names a configuration and
/// uncompressed layers, some of which may be links to each other. A compressed layer is read once
/// for its digest; progress is written to `log`.
Result<std::unique_ptr<LocalImage>> open_docker_save(std::unique_ptr<TarFiles> files,
                                                     const std::string& reference,
                                                     const std::string& name, Log& log);

/// Opens a tar archive of a root file system, as written by `docker export` and debootstrap: an
/// image of one layer with an empty configuration for this architecture. The archive is read once
/// for its digest; progress is written to `log`.
Result<std::unique_ptr<LocalImage>> open_root_archive(const TarFiles& files,
                                                      const std::string& name, Log& log);

// --- OCI layout ---

/// Opens the image `reference` in an OCI image layout. `name` names the layout in messages.
///
/// `reference` is the annotation org.opencontainers.image.ref.name, a name given by docker or
/// containerd (io.containerd.image.name), or a digest. If it is empty, the image is the only one,
/// or the whole index if that lists platforms instead of images.
Result<std::unique_ptr<LocalImage>> open_oci_layout(std::unique_ptr<NamedFiles> files,
                                                    const std::string& reference,
                                                    const std::string& name);

/// Returns the error for a missing or unknown reference, which lists the images.
Error no_such_image(const std::string& name, const std::string& reference,
                    const std::vector<std::string>& there);
/// Returns whether two names denote the same image, as `x` and `docker.io/library/x:latest` do.
bool is_same_name(const std::string& one, const std::string& other);

}  // namespace spc::user_source
