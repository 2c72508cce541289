#include "import.hpp"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "image/location.hpp"
#include "image/pull_layers.hpp"
#include "image/stored_image.hpp"

namespace spc {
namespace {

std::string in_mb(std::uint64_t bytes) { return std::to_string((bytes + 999'999) / 1'000'000) + " MB"; }

struct LayersOf {
  std::vector<MissingLayer> missing;  ///< each that has to be brought, once
  std::vector<UniqueFd> held;         ///< those that are there and may be taken: nobody takes them away
};

Result<LayersOf> sort_layers(const ResolvedImage& image, const ImageStore& store, LayerRights& rights) {
  LayersOf layers;
  std::map<Digest, Digest> seen;
  for (std::size_t i = 0; i < image.manifest.layers.size(); ++i) {
    const Descriptor& blob = image.manifest.layers[i];
    const Digest& diff_id = image.config.diff_ids[i];
    const auto [known, fresh] = seen.emplace(blob.digest, diff_id);
    if (!fresh) {
      if (known->second == diff_id) continue;
      return Error(ErrorKind::corrupt, "layer " + quoted(blob.digest.str()) + ": the image gives it two contents");
    }
    const Digest name = layer_name(blob.digest);
    UniqueFd there = store.hold_layer(name);
    if (there && SPC_TRY(rights.may_take(name))) {
      layers.held.push_back(std::move(there));
    } else {
      layers.missing.push_back({blob, diff_id});
    }
  }
  return layers;
}

Result<void> check_space(const std::vector<MissingLayer>& missing, const ImageStore& store) {
  std::uint64_t compressed = 0;
  for (const auto& layer : missing) {
    if (!store.has_layer(layer_name(layer.blob.digest))) compressed += layer.blob.size;
  }
  if (compressed == 0) return {};
  const std::uint64_t needed = compressed + compressed / 10 + (64 << 20);
  const std::uint64_t free = SPC_TRY(store.space()).free;
  if (free >= needed) return {};
  return std::move(Error(ErrorKind::no_space, "the image store has " + in_mb(free) + " free, the image needs " + in_mb(needed))
                       .hint("the administrator can make room in " SPC_STORE_DIR));
}

Result<void> check_size(const ResolvedImage& image, std::uint64_t limit) {
  std::uint64_t size = 0;
  for (const Descriptor& layer : image.manifest.layers) size += layer.size;
  if (limit == 0 || size <= limit) return {};
  return Error(ErrorKind::refused, "the image has " + in_mb(size) + ", this site allows " + in_mb(limit));
}

std::size_t parallel_layers(const Config& config) {
  if (config.max_parallel_layers > 0) return config.max_parallel_layers;
  return static_cast<std::size_t>(std::clamp(::sysconf(_SC_NPROCESSORS_ONLN), 1L, 4L));
}

}  // namespace

Result<Digest> import_image(const ImportRequest& request, const Config& config, ImageStore& store, AgentLink& agent) {
  const auto location = SPC_TRY(ImageLocation::parse(request.image, config.default_registry));
  const std::string step = "import image " + quoted(location.canonical());
  if (location.kind != ImageLocation::Kind::registry) {
    return Error(ErrorKind::invalid, step + ": image files and directories are not supported yet")
        .hint("push the image to a registry");
  }
  const ImageReference& reference = location.name;
  const RegistryConfig& registry = config.registry(reference.registry);
  if (registry.blocked) {
    return Error(ErrorKind::refused, step + ": this site does not allow registry " + quoted(reference.registry))
        .hint("push the image to a registry that is allowed, or ask the administrator");
  }

  const auto http = SPC_TRY(HttpClient::create({.stall = std::chrono::seconds(config.stall_timeout)}));
  Repository repository(*http, agent, reference, registry);
  WantedImage wanted{.name = reference.canonical(),
                     .ref_file = reference.ref_file_name(),
                     .digest = reference.digest,
                     .origin = {.registry = reference.registry, .repository = reference.repository},
                     .uid = request.uid};
  wanted.origin.platform = request.platform.str();
  StoredImage stored(store, wanted, config);

  const PullPolicy pull = request.pull.value_or(config.pull);
  if (const auto image = SPC_TRY_DURING(step, stored.usable(pull, repository, agent))) return *image;

  const ResolvedImage image = SPC_TRY_DURING(step, repository.resolve(request.platform));
  const Access access = repository.access();
  SPC_TRY_DURING(step, check_size(image, config.max_image_bytes));
  LayerRights rights(store, wanted.origin.place());
  const auto layers = SPC_TRY_DURING(step, sort_layers(image, store, rights));
  SPC_TRY_DURING(step, check_space(layers.missing, store));

  std::set<Digest> distinct;
  for (const Descriptor& layer : image.manifest.layers) distinct.insert(layer.digest);
  const PullContext context{.http = *http,
                            .source = repository,
                            .store = store,
                            .agent = agent,
                            .rights = rights,
                            .image = reference.canonical(),
                            .layers = distinct.size(),
                            .max_parallel = parallel_layers(config),
                            .meter = request.meter};
  const auto held = SPC_TRY_DURING(step, pull_layers(context, layers.missing));
  SPC_TRY_DURING(step, stored.keep(image, access));
  return image.digest;
}

}  // namespace spc
