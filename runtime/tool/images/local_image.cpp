#include "tool/images/local_image.hpp"

#include "base/format.hpp"
#include "image/reference/location.hpp"
#include "launch/host/local_image.hpp"

namespace spc::tool {

Result<OpenedImage> open_stored_image(int store, const ListedImage& image) {
  if (!image.record)
    return Error(ErrorKind::refused,
                 formatted("use image {}: permission denied for its record", image.digest.str()));
  OpenedImage opened;
  opened.name = image.names.empty() ? image.digest.str() : image.names.front().name;
  opened.settings = image.record->settings;
  if (opened.settings != kSettingsInFiles)
    opened.settings += "manifest=" + image.digest.str() + '\0';
  auto layers = SPC_TRY(open_layers(store, image));
  for (auto& layer : layers) opened.files.layers.push_back({std::move(layer), 0});
  return opened;
}

Result<OpenedImage> open_image(const Places& places, const Config& config, const Wanted& wanted) {
  const auto location = ImageLocation::parse(wanted.image, config.default_registry);
  if (location && location->kind == ImageLocation::Kind::path) {
    SPC_TRY(make_own_store(places));
    auto local = SPC_TRY(open_local_image(location->path, places.home));
    if (!local.warning.empty()) report_error("warning: " + local.warning);
    OpenedImage opened;
    opened.name = location->path;
    opened.settings = kSettingsInFiles;
    if (local.kind == LocalImage::Kind::directory) {
      opened.files.directory = std::move(local.file);
      return opened;
    }
    if (local.kind == LocalImage::Kind::squashfs) {
      opened.files.layers.push_back({std::move(local.file), local.offset});
      return opened;
    }
  }
  const auto obtained = SPC_TRY(obtain(places, config, wanted));
  return open_stored_image(obtained.store.get(), obtained.image);
}

}  // namespace spc::tool
