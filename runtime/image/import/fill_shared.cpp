#include "image/import/fill_shared.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <list>

#include "base/format.hpp"
#include "image/pull/layer_proof.hpp"
#include "image/pull/repository.hpp"
#include "image/reference/location.hpp"
#include "image/registry/registry_session.hpp"

namespace spc {
namespace {

constexpr std::size_t kAtOnce = 4;

/// Each layer is read to its end, as if the node's store had it from elsewhere: what is missing
/// comes by the way.
Result<void> read_layers(const std::vector<Descriptor>& layers, Repository& repository,
                         HttpClient& http, AgentLink& agent, bool meter) {
  std::deque<Descriptor> queue;
  std::uint64_t total = 0, complete = 0;
  for (const Descriptor& layer : layers) {
    if (std::ranges::find(queue, layer.digest, &Descriptor::digest) != queue.end()) continue;
    queue.push_back(layer);
    total += layer.size;
  }
  std::list<std::unique_ptr<LayerProof>> underway;
  while (!queue.empty() || !underway.empty()) {
    for (; underway.size() < kAtOnce && !queue.empty(); queue.pop_front()) {
      const ImageLayer layer{.blob = queue.front(), .diff_id = {}, .names = {}, .place = 0};
      underway.push_back(LayerProof::start(layer, layer.blob.digest, {}, repository));
    }
    std::vector<pollfd> watched{agent.watch()};
    std::uint64_t received = complete;
    for (const auto& one : underway) {
      received += one->received();
      one->watch(watched);
    }
    if (meter) agent.meter(received, total);
    SPC_TRY(http.wait(std::chrono::milliseconds(100), watched));
    SPC_TRY(agent.check());
    for (auto one = underway.begin(); one != underway.end();) {
      const bool is_complete = SPC_TRY((*one)->advance());
      if (is_complete) complete += (*one)->received();
      one =
          is_complete ? underway.erase(one) : std::next(one);  // which waits until it has its name
    }
  }
  return {};
}

Result<void> check_all_there(const Manifest& manifest, const SharedStore& store,
                             const std::string& place) {
  for (const Descriptor& layer : manifest.layers) {
    if (store.find(layer.digest, layer.size, place)) continue;
    return Error(ErrorKind::no_space,
                 formatted("layer {} is not in shared store {}", in_quotes(layer.digest.str()),
                           in_quotes(store.directory())))
        .hint("it has no room for it, or cannot be written");
  }
  return {};
}

Result<Digest> fill(const ImportRequest& request, const ImageReference& name, const Config& config,
                    AgentLink& agent) {
  SPC_TRY(config.submit_rules().registries.check(name.registry));
  const auto store = SPC_TRY(SharedStore::open(config.shared.directory, config.shared.max_size));
  const auto http = SPC_TRY(HttpClient::create(
      {.stall = std::chrono::seconds(config.stall_timeout), .proxies = proxies_of_site(config)}));
  Repository repository(*http, agent, name, config);
  repository.look_first_in(&store);
  const ResolvedImage image = SPC_TRY(repository.resolve(request.platform));
  auto layers = image.manifest.layers;
  if (request.pull == PullPolicy::missing) {  // what is there each node checks when it takes it
    std::erase_if(layers, [&](const Descriptor& layer) {
      return static_cast<bool>(store.find(layer.digest, layer.size, repository.place()));
    });
  }
  SPC_TRY(read_layers(layers, repository, *http, agent, request.meter));
  SPC_TRY(check_all_there(image.manifest, store, repository.place()));
  return image.digest;
}

}  // namespace

Result<Digest> fill_shared_store(const ImportRequest& request, const Config& config,
                                 AgentLink& agent) {
  const auto location = SPC_TRY(ImageLocation::parse(request.image, config.default_registry));
  const std::string step =
      "pull image " + in_quotes(location.canonical()) + " into the shared store";
  if (location.kind != ImageLocation::Kind::registry) {
    return Error(ErrorKind::invalid, step + ": it takes images of registries only");
  }
  auto image = fill(request, location.name, config, agent);
  if (!image) return std::move(image).error().during(step);
  return image;
}

}  // namespace spc
