#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "image/reference/location.hpp"
#include "image/user_source/file_part.hpp"

namespace spc::user_source {

/// One image of the user, in the form of every image: a document (manifest or index) and blobs
/// named by digest. Other formats (`docker save`, a tar of a root file system) are described as
/// such; layers are never copied.
class LocalImage {
 public:
  virtual ~LocalImage() = default;

  /// Finds the image, as the user. Long operations are reported to `log`.
  static Result<std::unique_ptr<LocalImage>> open(const ImageLocation& location, Log& log);

  [[nodiscard]] virtual const FilePart& document() const = 0;
  /// Empty: the image has no such blob.
  virtual Result<std::optional<FilePart>> blob(const Digest& digest) const = 0;
};

/// An image whose manifest we generate: always the same bytes for the same image.
class DescribedImage final : public LocalImage {
 public:
  struct Layer {
    Digest digest;  ///< of the bytes of `part`
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

}  // namespace spc::user_source
