#include "image/pull/layer_sharing.hpp"

#include <algorithm>
#include <chrono>

#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::chrono::milliseconds kPause{500};

/// Without the converted layers: as long as they may take at 8 MB/s.
std::chrono::seconds patience_with(const std::vector<ImageLayer>& layers) {
  std::uint64_t bytes = 0;
  for (const ImageLayer& layer : layers) bytes += layer.blob.size;
  return std::chrono::seconds(30 + bytes / 8'000'000);
}

std::string form_text(const LayerLimits& form) {
  const char* const compression = form.compression == LayerCompression::zstd  ? "zstd"
                                  : form.compression == LayerCompression::lz4 ? "lz4"
                                                                              : "none";
  const char* const format = form.format == LayerFormat::erofs            ? "erofs"
                             : form.format == LayerFormat::owned_squashfs ? "owned-squashfs"
                                                                          : "squashfs";
  return formatted("{}-{}-{}", kLayerFormat, format, compression);
}

}  // namespace

LayerSharing::LayerSharing(const SharedStore& shared, std::string place, const Digest& image,
                           const LayerLimits& form, const ImageStore& store, AgentLink& agent,
                           LayerRights& rights)
    : shared_(shared),
      place_(std::move(place)),
      image_(image),
      form_(form_text(form)),
      processors_(form.processors),
      store_(store),
      agent_(agent),
      rights_(rights) {}

SharedStore::Layer LayerSharing::shared_layer(const ImageLayer& layer, const Digest& name) const {
  return {.form = form_, .name = name, .blob = layer.blob.digest, .place = place_};
}

Result<void> LayerSharing::take(PulledLayers& layers) {
  WatchedLease others;
  bool is_told = false;
  const auto end = std::chrono::steady_clock::now() + patience_with(layers.missing);
  for (;;) {
    SPC_TRY(take_all(layers));
    if (std::ranges::none_of(layers.missing,
                             [&](const ImageLayer& layer) { return is_wanted(layer); })) {
      stop_beating();
      return {};
    }
    if (lease_) return {};
    if (std::chrono::steady_clock::now() >= end) return {};
    auto lease = shared_.lease(image_, place_ + " layers", others);
    if (!lease) return {};  // it cannot be written, which its blobs will tell
    if (*lease) {
      lease_.emplace(std::move(**lease));
      keep_beating();  // and once more: who had it until now may have given them
      continue;
    }
    if (!is_told)
      agent_.write(LogLevel::info, "another node converts the image: waiting for its layers");
    is_told = true;
    pollfd agent = agent_.watch();
    ::poll(&agent, 1, static_cast<int>(kPause.count()));
    SPC_TRY(agent_.check());
  }
}

Result<void> LayerSharing::take_all(PulledLayers& layers) {
  for (auto layer = layers.missing.begin(); layer != layers.missing.end();) {
    const auto name = is_wanted(*layer) ? SPC_TRY(take_one(*layer)) : std::nullopt;
    if (name) {
      SPC_TRY(rights_.delivered(*name));
      layers.held[layer->place] = HeldLayer{*name, store_.hold_layer(*name)};
      layer = layers.missing.erase(layer);
    } else {
      ++layer;
    }
  }
  return {};
}

/// Its name in the node's store; empty: it has to be converted. What is wrong with it is told, and
/// is no error.
Result<std::optional<Digest>> LayerSharing::take_one(const ImageLayer& layer) {
  LayerLocks locks{.alone = SPC_TRY(store_.try_lock(layer.names.alone)), .fitted = {}};
  if (!locks.alone) return std::optional<Digest>();  // another job on this node is at it
  for (const Digest& name : {layer.names.alone, layer.names.fitted}) {
    const auto taken = copy_as(layer, name);
    if (taken && *taken) return std::optional(name);
    if (taken) continue;
    agent_.write(LogLevel::warning, taken.error().message() + ": converting the layer here");
    break;
  }
  return std::optional<Digest>();
}

Result<bool> LayerSharing::copy_as(const ImageLayer& layer, const Digest& name) {
  if (!shared_.has_layer(shared_layer(layer, name))) return false;
  const auto object = SPC_TRY(agent_.new_object(order_of(kLayerCopy, processors_)));
  LayerProcess copier(SPC_TRY(object->writer()));
  if (!SPC_TRY(shared_.copy_layer(shared_layer(layer, name), copier.input()))) return false;
  SPC_TRY_DURING("write " + name_of(layer), copier.finish());
  SPC_TRY(object->publish(name));
  for (;;) {
    pollfd answer = object->watch();
    ::poll(&answer, 1, -1);
    const auto published = object->is_published();
    if (published && *published) return true;
    if (published) continue;
    shared_.remove_layer(shared_layer(layer, name));
    return published.error();
  }
}

void LayerSharing::give(const std::vector<ImageLayer>& missing,
                        const std::vector<HeldLayer>& held) {
  for (const ImageLayer& layer : missing) {
    const HeldLayer& here = held[layer.place];
    const auto given = here.file
                           ? shared_.keep_layer(shared_layer(layer, here.name), here.file.get())
                           : Result<void>();
    if (given) continue;
    agent_.write(LogLevel::warning,
                 formatted("shared store {}: {}: other nodes convert the image themselves",
                           in_quotes(shared_.directory()), given.error().message()));
    break;
  }
  stop_beating();
}

void LayerSharing::keep_beating() {
  beating_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      lease_->beat();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
}

void LayerSharing::stop_beating() {
  beating_ = std::jthread();
  lease_.reset();
}

}  // namespace spc
