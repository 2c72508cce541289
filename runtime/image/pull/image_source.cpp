#include "image/pull/image_source.hpp"

#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxIndexes = 3;

/// Says both names: the image's and the one that is needed.
Result<void> check_platform(const ImageConfig& config, const Platform& wanted,
                            const std::string& name) {
  const Platform& is = config.platform;
  if ((is.os.empty() || is.os == wanted.os) &&
      (is.architecture.empty() || is.architecture == wanted.architecture))
    return {};
  return Error(ErrorKind::invalid, formatted("image {}: is built for {}, not for {}",
                                             in_quotes(name), printable(is.str()), wanted.str()))
      .hint("choose a tag built for " + wanted.str());
}

}  // namespace

Result<ResolvedImage> ImageSource::resolve(const Platform& platform) {
  ResolvedImage image;
  std::optional<Index::Entry> entry;  // of the index that led here
  for (;;) {
    const Document document = SPC_TRY(entry ? get_manifest(entry->descriptor.digest) : get_top());
    const std::string what = manifest_name(entry ? std::optional(document.digest) : std::nullopt);
    if (entry && document.bytes.size() != entry->descriptor.size) {
      return Error(ErrorKind::corrupt, formatted("{}: has {} bytes instead of {}", what,
                                                 document.bytes.size(), entry->descriptor.size));
    }
    auto parsed = SPC_TRY(parse_manifest(document.bytes, document.media_type, what));
    if (auto* manifest = std::get_if<Manifest>(&parsed)) {
      image.digest = document.digest;
      image.manifest_bytes = document.bytes;
      image.manifest = std::move(*manifest);
      break;
    }
    image.indexes.push_back(document.digest);
    if (image.indexes.size() > kMaxIndexes)
      return Error(ErrorKind::invalid, what + ": indexes are nested too deep");
    entry = SPC_TRY(choose_platform(std::get<Index>(parsed), platform, what));
  }

  const std::string what = "image configuration of " + in_quotes(name());
  image.config_bytes = SPC_TRY(get_config(image.manifest.config));
  image.config = SPC_TRY(parse_image_config(image.config_bytes, what));
  SPC_TRY(check_platform(image.config, platform, name()));
  if (image.config.diff_ids.size() != image.manifest.layers.size()) {
    return Error(ErrorKind::corrupt,
                 formatted("{}: describes {} layers, the manifest {}", what,
                           image.config.diff_ids.size(), image.manifest.layers.size()));
  }
  return image;
}

}  // namespace spc
