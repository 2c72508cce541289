#include "verify/record.hpp"

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "image/store/store.hpp"
#include "registry/manifest.hpp"

namespace spc {

namespace {

Error forged(std::string why) { return Error(ErrorKind::refused, std::move(why)); }

Result<void> check_layers(std::span<const Digest> files, const Manifest& manifest) {
  std::vector<Digest> blobs;
  for (const Descriptor& layer : manifest.layers) blobs.push_back(layer.digest);
  if (runs_of(files, layer_names(distinct_layers(blobs)))) return {};
  return forged("its layers are not those of its manifest");
}

/// Checks that only facts follow the configuration's settings: a second `env` or `entrypoint` would
/// take effect in tasks.
Result<void> check_settings(std::string_view settings, const std::string& configured) {
  if (!settings.starts_with(configured)) {
    return forged("its settings are not those of its configuration");
  }
  Records facts(settings.substr(configured.size()));
  while (facts.next()) {
    if (facts.key() != "fact" && facts.key() != "labels") {
      return forged("it has a setting that its configuration does not have");
    }
  }
  return facts.damaged() ? forged("its facts are damaged") : Result<void>();
}

Result<void> check_record(const Digest& name, std::string_view bytes) {
  const auto record = SPC_TRY(parse_image_record(bytes));
  // Rejects overlapping sections, and bytes outside all sections.
  if (serialize(record) != bytes) return forged("it is not laid out as a record");
  if (record.layer_format != kLayerFormat) return forged("its layers are of another format");
  if (Sha256::of(record.manifest) != name) return forged("its manifest is another image's");
  const auto document = SPC_TRY(parse_manifest(record.manifest, "", "manifest"));
  const auto* manifest = std::get_if<Manifest>(&document);
  if (manifest == nullptr) return forged("its manifest is an index");
  if (Sha256::of(record.config) != manifest->config.digest) {
    return forged("its configuration is not the one that its manifest names");
  }
  const auto config = SPC_TRY(parse_image_config(record.config, "configuration"));
  if (config.diff_ids.size() != manifest->layers.size()) {
    return forged("its configuration and its manifest have different numbers of layers");
  }
  SPC_TRY(check_layers(record.layers, *manifest));
  return check_settings(record.settings, settings_of(config));
}

}  // namespace

Result<void> verify_record(const Digest& manifest, std::string_view record) {
  const auto checked = check_record(manifest, record);
  if (checked) return {};
  // All input is in the bytes, so a parser's error means as well that the record is wrong.
  return forged(checked.error().what());
}

}  // namespace spc
