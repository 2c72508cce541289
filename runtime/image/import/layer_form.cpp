#include "image/import/layer_form.hpp"

#include "image/layer/worker/mountable.hpp"

namespace spc {

LayerLimits form_of_layers(const Config& config, bool user_store) {
  LayerLimits form{.compression = LayerCompression::zstd, .processors = config.import_cpus};
  if (config.wants_copies() && !user_store) form.format = LayerFormat::owned_squashfs;
  if (config.layer_compression == "zstd") return form;
  const bool takes_erofs = config.layer_format == "auto" && !user_store &&
                           (maps_only_erofs() || saves_memory_by_erofs());
  if (config.layer_format == "erofs" || takes_erofs) form.format = LayerFormat::erofs;
  if (config.layer_compression == "none") {
    form.compression = LayerCompression::none;
  } else if (config.layer_compression == "lz4" || form.format == LayerFormat::erofs ||
             reads_lz4()) {
    form.compression = LayerCompression::lz4;
  }
  return form;
}

}  // namespace spc
