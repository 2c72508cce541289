#include "image/import/import.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>
#include <set>

#include "base/format.hpp"
#include "base/process/processors.hpp"
#include "image/import/admission.hpp"
#include "image/import/layer_form.hpp"
#include "image/import/make_room.hpp"
#include "image/import/stored_image.hpp"
#include "image/pull/import_timing.hpp"
#include "image/pull/layer_sharing.hpp"
#include "image/pull/local_source.hpp"
#include "image/pull/pull_layers.hpp"
#include "image/pull/repository.hpp"
#include "image/reference/location.hpp"
#include "image/registry/registry_session.hpp"

namespace spc {
namespace {

std::string in_mb(std::uint64_t bytes) {
  return std::to_string((bytes + 999'999) / 1'000'000) + " MB";
}

Result<std::vector<ImageLayer>> layers_of(const ResolvedImage& image) {
  std::vector<Digest> blobs;
  std::map<Digest, std::size_t> seen;
  for (std::size_t i = 0; i < image.manifest.layers.size(); ++i) {
    const Digest& blob = blobs.emplace_back(image.manifest.layers[i].digest);
    const auto [known, fresh] = seen.emplace(blob, i);
    if (fresh || image.config.diff_ids[known->second] == image.config.diff_ids[i]) continue;
    return Error(ErrorKind::corrupt,
                 formatted("layer {}: the image gives it two contents", in_quotes(blob.str())));
  }
  blobs = distinct_layers(blobs);
  const auto names = layer_names(blobs);
  std::vector<ImageLayer> layers;
  for (std::size_t place = 0; place < blobs.size(); ++place) {
    const std::size_t i = seen[blobs[place]];
    layers.push_back({image.manifest.layers[i], image.config.diff_ids[i], names[place], place});
  }
  return layers;
}

/// Which layers of the image are one file: as its record has it, if there is one.
std::vector<LayerRun> runs_for(const std::vector<ImageLayer>& all,
                               const std::optional<ImageRecord>& record) {
  std::vector<std::uint64_t> sizes;
  std::vector<LayerNames> names;
  for (const ImageLayer& layer : all) {
    sizes.push_back(layer.blob.size);
    names.push_back(layer.names);
  }
  const auto known = record ? runs_of(record->layers, names) : std::nullopt;
  return known ? *known : plan_runs(sizes);
}

Result<PulledLayers> sort_layers(const std::vector<ImageLayer>& all, std::span<const LayerRun> runs,
                                 const ImageStore& store, LayerRights& rights) {
  PulledLayers layers;
  layers.held.resize(all.size());
  for (const LayerRun& run : runs) {
    if (!run.is_merged()) continue;
    const Digest name = merged_name(run.begin, all[run.end - 1].names);
    const UniqueFd there = store.hold_layer(name);
    if (!there || !SPC_TRY(rights.may_take(name))) continue;
    for (std::size_t place = run.begin; place < run.end; ++place) {
      layers.held[place] = HeldLayer{name, UniqueFd(::fcntl(there.get(), F_DUPFD_CLOEXEC, 0))};
    }
  }
  for (const ImageLayer& layer : all) {
    if (layers.held[layer.place]) continue;
    const auto name = name_in_store(layer, store);
    UniqueFd there = name ? store.hold_layer(*name) : UniqueFd();
    if (there && SPC_TRY(rights.may_take(*name))) {
      layers.held[layer.place] = HeldLayer{*name, std::move(there)};
    } else {
      layers.missing.push_back(layer);
    }
  }
  return layers;
}

/// Runs whose merged file is not there, or not for this image.
std::vector<LayerRun> runs_to_merge(std::span<const LayerRun> runs,
                                    const std::vector<ImageLayer>& all,
                                    const PulledLayers& layers) {
  std::vector<LayerRun> wanted;
  std::ranges::copy_if(runs, std::back_inserter(wanted), [&](const LayerRun& run) {
    const auto& there = layers.held[run.begin];
    return run.is_merged() &&
           (!there || there->name != merged_name(run.begin, all[run.end - 1].names));
  });
  return wanted;
}

/// Bytes that the layers to convert or merge will take, as a rule.
std::uint64_t bytes_needed(const std::vector<ImageLayer>& all, const PulledLayers& layers,
                           std::span<const LayerRun> merges, const ImageStore& store,
                           LayerCompression compression) {
  std::uint64_t blobs = 0;
  for (const auto& layer : layers.missing) {
    if (!name_in_store(layer, store)) blobs += layer.blob.size;
  }
  for (const LayerRun& run : merges) {
    for (std::size_t place = run.begin; place < run.end; ++place) blobs += all[place].blob.size;
  }
  switch (compression) {
    case LayerCompression::zstd: return blobs + blobs / 10;
    case LayerCompression::lz4: return blobs + blobs / 2;
    case LayerCompression::none: return blobs * 3;
  }
  return blobs;
}

Result<void> check_size(const ResolvedImage& image, std::uint64_t limit) {
  std::uint64_t size = 0;
  for (const Descriptor& layer : image.manifest.layers) size += layer.size;
  if (limit == 0 || size <= limit) return {};
  return Error(ErrorKind::refused,
               formatted("the image has {}, this site allows {}", in_mb(size), in_mb(limit)));
}

const char* hint_for_room(const ImportRequest& request) {
  return request.user_store ? "scontainer images, rm and gc make room there"
                            : "what is in use stays: the administrator can make room there";
}

/// What an import takes without layers, and what each layer that is fetched and converted takes.
constexpr std::uint64_t kImportMemory = 32 << 20, kLayerMemory = 32 << 20;

std::size_t parallel_layers(const Config& config) {
  const std::size_t most = config.max_parallel_layers > 0 ? config.max_parallel_layers
                                                          : std::min(usable_processors(), 4U);
  if (config.import_memory == 0) return most;
  const std::uint64_t fit =
      (std::max(config.import_memory, kImportMemory) - kImportMemory) / kLayerMemory;
  return std::clamp<std::uint64_t>(fit, 1, most);
}

/// What every way to an image needs.
struct Import {
  const ImportRequest& request;
  const Config& config;
  const ImageStore& store;
  AgentLink& agent;
  HttpClient& http;
  ImportTiming& timing;
  UserSourceLink& user;
  std::chrono::steady_clock::time_point began;
};

/// For slurmd's log: the keys and their order are kept. `nodes`: of the step, if they could meet;
/// `index` among those that have.
void tell_record(const Import& import, const Digest& image, const Peers* peers) {
  const BytesFrom& from = peers != nullptr ? peers->bytes() : import.timing.from;
  if (!import.request.record || import.timing.layers == 0) return;
  const auto tenths =
      std::chrono::floor<std::chrono::microseconds>(std::chrono::steady_clock::now() - import.began)
          .count() /
      100;
  import.agent.write(
      LogLevel::record,
      formatted("digest={} nodes={} index={} layers={} converted={} registry_bytes={} "
                "mirror_bytes={} node_bytes={} shared_bytes={} pull_ms={}.{}",
                image.str(), peers != nullptr && peers->srun_listens() ? import.request.meet : 1U,
                peers != nullptr ? peers->index() : 0U, import.timing.layers,
                import.timing.converted, from.registry, from.mirrors, from.nodes, from.shared,
                tenths / 10, tenths % 10));
}

/// The other nodes of the step, where there is a step on several. The agent is our parent, and the
/// relay is to end with it.
struct StepNodes {
  UniqueFd agent;
  std::optional<Peers> peers;
};

void look_for_peers(StepNodes& nodes, const Import& import) {
  if (import.request.meet < 2 || !import.config.peers.enabled || import.request.user_store) return;
  nodes.agent.reset(static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0)));
  nodes.peers.emplace(PeersContext{
      .http = import.http,
      .log = import.agent,
      .config = import.config.peers,
      .platform = import.request.platform,
      .nodes = import.request.meet,
      .meet = [&import](const MeetingRecord& asked) { return import.user.meet(asked); },
      .tell = [&import](const MeetingRecord& told) { return import.user.tell(told); },
      .new_file = [&import] { return import.store.new_spool(); },
      .agent = nodes.agent.get(),
      .relay = {}});
}

/// Announces the blobs that other nodes may ask for, if max_size and the disk have room for blobs
/// and layers.
void promise(Peers& peers, const std::vector<ImageLayer>& all,
             const std::vector<ImageLayer>& missing, const Import& import, std::uint64_t needed) {
  std::vector<std::pair<Digest, std::uint64_t>> blobs;
  std::uint64_t size = 0;
  for (const ImageLayer& layer : missing) {
    blobs.emplace_back(layer.blob.digest, layer.blob.size);
    size += layer.blob.size;
  }
  if (!has_room_beside(import.store, import.config.store, needed, size)) peers.stop_serving();
  std::uint64_t whole = 0;
  for (const ImageLayer& layer : all) whole += layer.blob.size;
  peers.will_fetch(blobs, whole - size);
}

/// Brings the layers that are missing or that this place has not delivered yet. They are held, so
/// that nobody takes them away before the record names them.
Result<StoredImage::Brought> bring_layers(const Import& import, ImageSource& source,
                                          const RequestedImage& wanted, const ResolvedImage& image,
                                          Peers* peers = nullptr,
                                          const SharedStore* shared = nullptr,
                                          std::vector<LayerRun> runs = {}) {
  SPC_TRY(check_size(image, import.config.max_image_bytes));
  LayerRights rights(import.store, wanted.origin.place());
  const auto all = SPC_TRY(layers_of(image));
  if (runs.empty()) runs = runs_for(all, SPC_TRY(import.store.image(image.digest)));
  auto layers = SPC_TRY(sort_layers(all, runs, import.store, rights));
  const auto merges = runs_to_merge(runs, all, layers);
  std::set<Digest> kept;
  for (const ImageLayer& layer : all) kept.insert({layer.names.alone, layer.names.fitted});
  for (const LayerRun& run : runs) kept.insert(merged_name(run.begin, all[run.end - 1].names));
  std::optional<StoreLock> slot;
  LayerLimits limits;
  std::uint64_t needed = 0;
  if (!layers.missing.empty() || !merges.empty()) {
    limits = form_of_layers(import.config, import.request.user_store);
    const TimedPhase phase(import.timing.others);
    slot.emplace(SPC_TRY(
        wait_for_slot(import.store, import.config.store, import.request.uid, import.agent)));
    needed = bytes_needed(all, layers, merges, import.store, limits.compression);
    SPC_TRY(make_room(import.store, import.config.store, needed, kept, import.agent,
                      hint_for_room(import.request)));
  }
  // The nodes of one step pass blobs on, and would wait for what a node takes converted.
  std::optional<LayerSharing> sharing;
  if (peers == nullptr && shared != nullptr && import.config.shared.keep == "layers" &&
      !layers.missing.empty()) {
    sharing.emplace(*shared, wanted.origin.place(), image.digest, limits, import.store,
                    import.agent, rights);
    const auto wanted_here = layers.missing;
    SPC_TRY(sharing->take(layers));
    import.timing.layers += wanted_here.size() - layers.missing.size();
    for (const ImageLayer& layer : wanted_here)
      import.timing.from.shared += layers.held[layer.place] ? layer.blob.size : 0;
  }
  const auto converted = layers.missing;
  if (peers != nullptr) promise(*peers, all, layers.missing, import, needed);
  ImageFacts facts([&import]() -> Result<LayerProcess::Ends> {
    return SPC_TRY(import.agent.new_object(order_of(kLayerFacts, import.config.import_cpus)))
        ->writer();
  });
  const PullContext context{.http = import.http,
                            .source = source,
                            .store = import.store,
                            .agent = import.agent,
                            .rights = rights,
                            .image = wanted.name,
                            .layers = all.size(),
                            .max_parallel = parallel_layers(import.config),
                            .limits = limits,
                            .meter = import.request.meter,
                            .peers = peers,
                            .facts = facts,
                            .timing = import.timing};
  auto held = SPC_TRY(about_store(pull_layers(context, std::move(layers)), import.store));
  if (sharing) sharing->give(converted, held);
  const TimedPhase phase(import.timing.publish);
  held = SPC_TRY(about_store(merge_layers(context, runs, all, std::move(held)), import.store));
  return StoredImage::Brought{std::move(held), facts.records()};
}

/// An image of a registry by one of the digests that it may have been given.
struct ByDigest {
  std::optional<Digest> digest;  ///< nothing: as the user gave it
  bool is_resolved = false;      ///< it is what a tag is said to stand for: the rules see the tag
  bool is_found = false;         ///< the registry, or the store, has it
};

ImageReference reference_for(const ImageReference& name, const ByDigest& by) {
  ImageReference reference = name;
  if (!by.digest) return reference;
  reference.digest = by.digest;
  reference.tag.clear();
  return reference;
}

RequestedImage wanted_image(const ImportRequest& request, const ImageReference& name,
                            const ByDigest& by) {
  const ImageReference reference = reference_for(name, by);
  RequestedImage wanted{
      .name = by.is_resolved ? name.canonical() : reference.canonical(),
      .stored_as = ref_file_of(reference, request.platform),
      .tag = {},
      .digest = reference.digest,
      .origin = {.registry = reference.registry, .repository = reference.repository},
      .uid = request.uid,
      .since = request.since,
      .has_it = request.manifest.has_value()};
  wanted.origin.platform = request.platform.str();
  wanted.may_name =
      by.is_resolved ==
      request.resolved.has_value();  // the agent takes one name, which the leader has chosen
  if (!by.is_resolved) return wanted;
  wanted.tag = ref_file_of(name, request.platform);
  wanted.stored_as = ref_file_of(name, request.platform, *by.digest);
  return wanted;
}

/// The site's, for the node's store. One that cannot be used costs a line: the registry has
/// everything.
std::optional<SharedStore> shared_store(const Import& import) {
  const SharedConfig& wanted = import.config.shared;
  if (wanted.directory.empty() || import.request.user_store) return std::nullopt;
  auto store = SharedStore::open(wanted.directory, wanted.max_size);
  if (store) return *std::move(store);
  import.agent.write(LogLevel::warning, store.error().message() + ": pulling without it");
  return std::nullopt;
}

Result<Digest> describe(const Import& import, const ResolvedImage& image) {
  SPC_TRY(import.agent.describe(image.config_bytes));
  return image.digest;
}

/// `name`: as the user gave it.
Result<Digest> import_by(const Import& import, const ImageReference& name, ByDigest& by,
                         UserSourceLink& user) {
  const ImageReference reference = reference_for(name, by);
  const std::string& whose = import.request.registry_user;
  ImageReference asked = reference;
  asked.user = whose;
  Repository repository(import.http, import.agent, asked, import.config,
                        [&] { return user.credentials(reference.registry, whose); });
  if (by.is_resolved) repository.show_as(name.canonical());
  if (import.request.only_digest) {
    const ResolvedImage described = SPC_TRY(repository.resolve(import.request.platform));
    return describe(import, described);
  }
  auto admission = SPC_TRY(
      Admission::prepare(import.config, import.store, by.is_resolved ? name : reference, name));
  const RequestedImage wanted = wanted_image(import.request, name, by);
  StoredImage stored(import.store, wanted, import.config);
  StepNodes nodes;
  look_for_peers(nodes, import);
  repository.take_from(nodes.peers ? &*nodes.peers : nullptr);

  const PullPolicy pull = import.request.pull.value_or(import.config.pull);
  const auto admit = [&](const std::string& manifest, const std::vector<Digest>& indexes) {
    return admission.decide(manifest, indexes, pull, repository);
  };
  if (const auto image = SPC_TRY(stored.usable(pull, repository, admit, import.agent))) {
    SPC_TRY(about_store(admission.keep(), import.store));
    return *image;
  }

  const auto shared = shared_store(import);
  repository.look_first_in(shared ? &*shared : nullptr);
  look_for_peers(nodes, import);  // anew: those met so far have the image
  Peers* const peers = nodes.peers ? &*nodes.peers : nullptr;
  repository.take_from(peers);
  const ResolvedImage image = SPC_TRY(repository.resolve(import.request.platform));
  by.is_found = true;
  const Access access = repository.access();
  SPC_TRY(admit(image.manifest_bytes, image.indexes));
  const auto brought =
      SPC_TRY(bring_layers(import, repository, wanted, image, peers, shared ? &*shared : nullptr));
  SPC_TRY(about_store(stored.keep(image, access, brought, repository.asked_by_others_at()),
                      import.store));
  SPC_TRY(about_store(admission.keep(), import.store));
  if (peers != nullptr) peers->tell_done();
  repository.take_from(nullptr);
  tell_record(import, image.digest, peers);
  return image.digest;
}

/// Of a stored container only the image that it was made from will do. What a tag is said to stand
/// for does not count if it cannot be had: this node's registry may be another one than srun's.
Result<Digest> import_from_registry(const Import& import, const ImageReference& name,
                                    UserSourceLink& user) {
  SPC_TRY(import.config.submit_rules().registries.check(name.registry));
  ByDigest as_given{.digest = import.request.manifest};
  if (!import.request.resolved || as_given.digest || name.digest)
    return import_by(import, name, as_given, user);
  ByDigest resolved{.digest = import.request.resolved, .is_resolved = true};
  auto image = import_by(import, name, resolved, user);
  const auto is_missing = [](ErrorKind kind) {
    return kind == ErrorKind::not_found || kind == ErrorKind::unavailable;
  };
  if (image || resolved.is_found || !is_missing(image.error().kind())) return image;
  return import_by(import, name, as_given, user);
}

/// An image that was saved as one layer on another has no other: those below come from where that
/// image is, which this user must have access to. They then count as if the user had brought them.
/// Returns which of the image's layers are one file: those below as they are in that image.
Result<std::vector<LayerRun>> bring_layers_below(const Import& import, const ResolvedImage& image,
                                                 const std::string& place, UserSourceLink& user) {
  LayerRights rights(import.store, place);
  auto all = SPC_TRY(layers_of(image));
  if (all.empty()) return std::vector<LayerRun>();
  all.pop_back();
  auto stored = SPC_TRY(import.store.image(image.digest));
  if (stored && !stored->layers.empty()) stored->layers.pop_back();
  auto runs = runs_for(all, stored);
  const auto with_top = [&] {
    runs.push_back({all.size(), all.size() + 1});
    return std::move(runs);
  };
  if (SPC_TRY(sort_layers(all, runs, import.store, rights)).missing.empty()) return with_top();
  const auto below = SPC_TRY(ImageReference::parse(image.manifest.layers_of));
  if (!below.digest)
    return Error(ErrorKind::corrupt, "does not say by digest which image lies below");
  SPC_TRY(import.config.submit_rules().registries.check(below.registry));
  ImportRequest request = import.request;
  request.resolved = below.digest;  // nobody has asked for a name of it
  request.manifest.reset();
  request.registry_user.clear();
  request.meet = 0;
  ByDigest by{.digest = below.digest};
  Import other{.request = request,
               .config = import.config,
               .store = import.store,
               .agent = import.agent,
               .http = import.http,
               .timing = import.timing,
               .user = import.user,
               .began = import.began};
  const Digest brought =
      SPC_TRY_DURING("the image below: " + below.canonical(), import_by(other, below, by, user));
  const auto record = SPC_TRY(import.store.image(brought));
  for (const Digest& layer : record ? record->layers : std::vector<Digest>())
    SPC_TRY(rights.delivered(layer));
  runs = runs_for(all, record);
  return with_top();
}

/// The user's process says at each start which image it is; what is in the store already its digest
/// tells.
Result<Digest> import_from_user(const Import& import, const std::string& name,
                                UserSourceLink& user) {
  LocalSource source(user, name);
  RequestedImage wanted{
      .name = name, .stored_as = {}, .digest = {}, .origin = {}, .uid = import.request.uid};
  wanted.origin.user = import.request.uid;
  wanted.origin.platform = import.request.platform.str();
  const ResolvedImage image = SPC_TRY(source.resolve(import.request.platform));
  if (import.request.only_digest) return describe(import, image);
  std::vector<LayerRun> runs;
  if (!image.manifest.layers_of.empty())
    runs = SPC_TRY(bring_layers_below(import, image, wanted.origin.place(), user));
  const auto brought =
      SPC_TRY(bring_layers(import, source, wanted, image, nullptr, nullptr, std::move(runs)));
  const StoredImage stored(import.store, wanted, import.config);
  SPC_TRY(about_store(stored.keep(image, Access::not_known, brought), import.store));
  return image.digest;
}

}  // namespace

Result<Digest> import_image(const ImportRequest& request, const Config& config,
                            const ImageStore& store, AgentLink& agent, UserSourceLink& user) {
  const auto began = std::chrono::steady_clock::now();
  ImportTiming timing;
  const auto location = SPC_TRY(ImageLocation::parse(request.image, config.default_registry));
  const std::string name = location.canonical();
  const auto http = SPC_TRY(HttpClient::create(
      {.stall = std::chrono::seconds(config.stall_timeout),
       .proxies = request.user_store ? proxies_of_user(config) : proxies_of_site(config)}));
  const Import import{.request = request,
                      .config = config,
                      .store = store,
                      .agent = agent,
                      .http = *http,
                      .timing = timing,
                      .user = user,
                      .began = began};
  auto image = location.kind == ImageLocation::Kind::registry
                   ? import_from_registry(import, location.name, user)
                   : import_from_user(import, name, user);
  if (!image) return std::move(image).error().during("pull image " + in_quotes(name));
  if (request.verbose)
    agent.write(LogLevel::info, timing.line(std::chrono::steady_clock::now() - began));
  return image;
}

}  // namespace spc
