// The program `import`: pulls an image into the node's store or the shared store, and resolves tags
// for srun.

#include "image/import/import.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <deque>
#include <exception>
#include <iterator>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/kernel.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "config/config.hpp"
#include "image/pull/image_source.hpp"
#include "image/pull/layer_process.hpp"
#include "image/pull/pull_layers.hpp"
#include "image/pull/shared_pull.hpp"
#include "protocol/import.hpp"
#include "protocol/submit.hpp"
#include "reference/location.hpp"
#include "reference/request.hpp"
#include "registry/client.hpp"

namespace spc {

// --- layer form ---

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

// --- shared store filling ---

namespace {

constexpr std::size_t kAtOnce = 4;

/// Reads each layer to its end, as if another origin had delivered it to the node's store. Missing
/// layers are fetched into the shared store at the same time.
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
      // The destructor of a finished stream waits until the blob is published.
      one = is_complete ? underway.erase(one) : std::next(one);
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
        .hint("scontainer doctor --node checks the shared store");
  }
  return {};
}

Result<Digest> fill(const ImportRequest& request, const ImageReference& name, const Config& config,
                    AgentLink& agent) {
  SPC_TRY(config.check_registry(name.registry, name.repository));
  const auto store = SPC_TRY(
      SharedStore::open(config.shared.directory, config.shared.max_size, config.shared.grace()));
  const auto http = SPC_TRY(HttpClient::create(
      {.stall = std::chrono::seconds(config.stall_timeout), .proxies = proxies_of_site(config)}));
  Repository repository(*http, agent, name, config);
  repository.look_first_in(&store);
  const ResolvedImage image = SPC_TRY(repository.resolve(request.platform));
  auto layers = image.manifest.layers;
  if (request.pull == PullPolicy::missing) {  // nodes check stored layers when they read them
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

// --- tag resolution ---

namespace {

/// Discards messages: the nodes resolve the tag again and report them.
class Silence final : public Log {
 public:
  void write(LogLevel, std::string_view) noexcept override {}
};

/// Asks a `user-source` of this process for credentials. Starts it only when they are needed.
Result<std::optional<RegistrySecret>> credentials_of_user(const ImageLocation& image, Log& log) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const std::string path = own_program("user-source");
  Program program{.path = path,
                  .arguments = {path, image.canonical()},
                  .descriptors = {{theirs.get(), kUserSourceSocket}}};
  program.group = Program::Group::own;
  const auto child = SPC_TRY(Child::start(program));
  theirs.reset();
  UserSourceLink link(ours.get(), log);
  return link.credentials(image.name.registry, image.name.user);
}

/// Returns whether the nodes would ask the registry, by their rules.
bool is_asked(const Config& config, const ImageLocation& image, PullPolicy pull) {
  return image.kind == ImageLocation::Kind::registry && !image.name.digest &&
         config.site.importer.empty() && asks_anyway(pull);
}

Result<std::string> answer_for(const std::string& name, std::string_view pull) {
  const auto config = SPC_TRY(read_config(SPC_CONFIG_FILE));
  const auto image = SPC_TRY(ImageLocation::parse(name, config.default_registry));
  if (!is_asked(config, image, parse_pull_policy(pull).value_or(config.pull))) return std::string();
  SPC_TRY(config.check_registry(image.name.registry, image.name.repository));
  const auto http = SPC_TRY(HttpClient::create(
      {.stall = std::chrono::seconds(config.stall_timeout), .proxies = proxies_of_user(config)}));
  Silence log;
  Repository repository(*http, log, image.name, config,
                        [&] { return credentials_of_user(image, log); });
  const Digest digest = SPC_TRY(repository.ask_digest(image.name.tag));
  return formatted("{} {} {}@{}\n", config.tag_ttl, config.job_tag_ttl, image.canonical(),
                   digest.str());
}

}  // namespace

int answer_resolve(std::span<char*> words) noexcept {
  try {
    if (words.size() != 2) return 2;
    ::alarm(kResolveSeconds + 1);  // srun's time-out is shorter
    const auto answer = answer_for(words[0], words[1]);
    return answer && write_all(kResolveAnswer, *answer) ? 0 : 1;
  } catch (const std::exception&) {  // out of memory
    return 1;
  }
}

// --- import ---

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

/// Returns the runs of layers that are one file, as in the image's record if there is one.
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

/// Returns the runs whose merged file is missing or belongs to another image.
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

/// Returns the usual size in bytes of the layers to convert or merge.
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

/// Memory in bytes of an import without layers, and of each layer being fetched and converted.
constexpr std::uint64_t kImportMemory = 32 << 20, kLayerMemory = 32 << 20;

std::size_t parallel_layers(const Config& config) {
  const std::size_t most = config.max_parallel_layers > 0 ? config.max_parallel_layers
                                                          : std::min(usable_processors(), 4U);
  if (config.import_memory == 0) return most;
  const std::uint64_t fit =
      (std::max(config.import_memory, kImportMemory) - kImportMemory) / kLayerMemory;
  return std::clamp<std::uint64_t>(fit, 1, most);
}

/// Parameters that all kinds of images share.
struct Import {
  const ImportRequest& request;
  const Config& config;
  const ImageStore& store;
  AgentLink& agent;
  HttpClient& http;
  ImportTiming& timing;
  UserSourceLink& user;
  const RelayStarter* relay;
  std::chrono::steady_clock::time_point began;
};

/// Writes the record for slurmd's log, with stable keys in a stable order. It has the number of
/// nodes if the step's nodes could reach the tracker, and this node's index among its peers.
void tell_record(const Import& import, const Digest& image, const Peers* peers) {
  const BytesFrom& from = peers != nullptr ? peers->bytes() : import.timing.from;
  if (!import.request.record || import.timing.layers == 0) return;
  const auto tenths =
      std::chrono::floor<std::chrono::microseconds>(std::chrono::steady_clock::now() - import.began)
          .count() /
      100;
  import.agent.write(
      LogLevel::record,
      formatted(
          "digest={} nodes={} index={} layers={} converted={} registry_bytes={} "
          "mirror_bytes={} node_bytes={} shared_bytes={} pull_ms={}.{}",
          image.str(), peers != nullptr && peers->srun_listens() ? import.request.step_nodes : 1U,
          peers != nullptr ? peers->index() : 0U, import.timing.layers, import.timing.converted,
          from.registry, from.mirrors, from.nodes, from.shared, tenths / 10, tenths % 10));
}

/// The other nodes of a step on several nodes. The agent is this process's parent, and the relay
/// ends with it.
struct StepNodes {
  UniqueFd agent;
  std::optional<Peers> peers;
};

void look_for_peers(StepNodes& nodes, const Import& import) {
  if (import.request.step_nodes < 2 || !import.config.peers.enabled || import.request.user_store)
    return;
  nodes.agent.reset(static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0)));
  nodes.peers.emplace(PeersContext{
      .http = import.http,
      .log = import.agent,
      .config = import.config.peers,
      .platform = import.request.platform,
      .nodes = import.request.step_nodes,
      .ask_tracker =
          [&import](const TrackerRecord& asked) { return import.user.ask_tracker(asked); },
      .tell_tracker =
          [&import](const TrackerRecord& told) { return import.user.tell_tracker(told); },
      .new_file = [&import] { return import.store.new_spool(); },
      .agent = nodes.agent.get(),
      .relay = import.relay});
}

/// Announces the blobs to other nodes, if max_size and the disk have room for blobs and layers.
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

/// Pulls the layers that are missing or that this origin has not delivered yet. Holds all of them,
/// so that none is evicted before the record names it.
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

  // These layers must survive the eviction that makes room for the others.
  const auto merges = runs_to_merge(runs, all, layers);
  std::set<Digest> kept;
  for (const ImageLayer& layer : all) kept.insert({layer.names.alone, layer.names.fitted});
  for (const LayerRun& run : runs) kept.insert(merged_name(run.begin, all[run.end - 1].names));

  // Converting and merging need a slot of the user and space in the store.
  std::optional<StoreLock> slot;
  LayerLimits limits;
  std::uint64_t needed = 0;
  const bool is_limited = import.config.max_parallel_layers > 0 || import.config.import_memory > 0;
  if (!layers.missing.empty() || !merges.empty()) {
    limits = form_of_layers(import.config, import.request.user_store);
    const TimedPhase phase(import.timing.others);
    slot.emplace(SPC_TRY(
        wait_for_slot(import.store, import.config.store, import.request.uid, import.agent)));
    needed = bytes_needed(all, layers, merges, import.store, limits.compression);
    const std::uint64_t plain =
        bytes_needed(all, layers, merges, import.store, LayerCompression::none);
    if (stores_plain_first(import.config, import.request, import.store, limits.compression,
                           plain)) {
      limits.plain_first = 1;
      needed = plain;
    }
    SPC_TRY(make_room(import.store, import.config.store, needed, kept, import.agent,
                      hint_for_room(import.request)));
  }
  // Nodes of one step pass on blobs, and would wait for a blob that a node gets as a converted
  // layer.
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
                            .small_in_slot = is_limited ? 1U : 4U,
                            .limits = limits,
                            .meter = import.request.meter && import.request.user_store,
                            .bar = import.request.meter && !import.request.user_store,
                            .peers = peers,
                            .facts = facts,
                            .timing = import.timing};

  auto held = SPC_TRY(about_store(pull_layers(context, std::move(layers)), import.store));
  if (sharing) sharing->give(converted, held);
  const TimedPhase phase(import.timing.publish);
  held = SPC_TRY(about_store(merge_layers(context, runs, all, std::move(held)), import.store));
  return StoredImage::Brought{std::move(held), facts.records()};
}

/// An image of a registry, identified by a digest that the request may contain.
struct ByDigest {
  std::optional<Digest> digest;  ///< empty: resolve the user's reference
  bool is_resolved = false;      ///< the digest was resolved from a tag: the rules see the tag
  bool is_found = false;         ///< the registry or the store has the image
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
  // The agent accepts only the name that the leader has chosen.
  wanted.may_name = by.is_resolved == request.resolved.has_value();
  if (!by.is_resolved) return wanted;
  wanted.tag = ref_file_of(name, request.platform);
  wanted.stored_as = ref_file_of(name, request.platform, *by.digest);
  return wanted;
}

/// Opens the site's shared store for an import into the node's store. If it is not usable, logs a
/// warning: the registry has everything.
std::optional<SharedStore> shared_store(const Import& import) {
  const SharedConfig& wanted = import.config.shared;
  if (wanted.directory.empty() || import.request.user_store) return std::nullopt;
  auto store = SharedStore::open(wanted.directory, wanted.max_size, wanted.grace());
  if (store) return *std::move(store);
  import.agent.write(LogLevel::warning, store.error().message() + ": pulling without it");
  return std::nullopt;
}

/// `[shared] use = "in-place"`, for one image. Problems are reported once, and the image is then
/// pulled.
class InPlace {
 public:
  InPlace(const Import& import, const std::string& place) : import_(import), place_(place) {
    if (!import.config.shared.uses_in_place() || import.request.own_layers) return;
    auto store = shared_store(import);
    if (!store) return;
    store_ = std::make_shared<const SharedStore>(*std::move(store));
    auto source = InPlaceSource::open(store_, import.config.shared, place,
                                      form_of_layers(import.config, false), import.agent);
    if (source) {
      source_.emplace(*std::move(source));
    } else {
      warn(source.error());
    }
  }
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;

  [[nodiscard]] bool is_used() const { return source_.has_value(); }
  /// The shared store, if images are used in place.
  [[nodiscard]] const SharedStore* store() const { return is_used() ? store_.get() : nullptr; }

  void prepare(std::size_t layers) { source_->prepare(layers); }

  /// Returns whether the layers of an image with a record are in the node's store, or are served
  /// now.
  Result<bool> has_or_serves(const Digest& image) {
    if (!is_used()) return true;
    const auto record = SPC_TRY(import_.store.image(image));
    if (!record || !record->in_place) return record.has_value();
    return serve(image).has_value();
  }

  /// Has the image served. If another node converts it, waits for that node. Empty if this node has
  /// to bring the layers.
  Result<std::optional<StoredImage::Brought>> take(const ResolvedImage& image) {
    std::optional<StoredImage::Brought> brought;
    if (!is_used()) return brought;
    SPC_TRY(check_size(image, import_.config.max_image_bytes));
    std::uint64_t bytes = 0;
    for (const Descriptor& layer : image.manifest.layers) bytes += layer.size;
    const auto look = [&]() -> Result<bool> {
      const auto served = serve(image.digest);
      if (!served) return false;
      brought = StoredImage::Brought{.layers = {}, .facts = served->facts, .in_place = true};
      for (const auto& layer : served->layers) brought->layers.push_back({layer.name, {}});
      return true;
    };
    if (!source_->may_give()) {
      SPC_TRY(look());
      return brought;
    }
    turn_.emplace(*store_, place_, image.digest, import_.agent);
    SPC_TRY(turn_->await(look, bytes));
    return brought;
  }

  /// Stores the layers for other nodes, if this node may.
  void give(const Digest& image, const StoredImage::Brought& brought) {
    if (is_used() && source_->may_give()) {
      const auto given = source_->give(image, brought.layers, brought.facts);
      if (!given) warn(given.error());
    }
    turn_.reset();
  }

 private:
  std::optional<ImageInPlace> serve(const Digest& image) {
    auto served = source_ ? source_->serve(image) : Result(std::optional<ImageInPlace>());
    if (served) return *std::move(served);
    if (!std::exchange(is_told_, true)) warn(served.error());
    return std::nullopt;
  }
  void warn(const Error& error) {
    import_.agent.write(LogLevel::warning,
                        formatted("image in place, shared store {}: {}: pulling without it",
                                  in_quotes(import_.config.shared.directory), error.message()));
  }

  const Import& import_;
  std::string place_;
  std::shared_ptr<const SharedStore> store_;
  std::optional<InPlaceSource> source_;
  std::optional<ConvertingTurn> turn_;
  bool is_told_ = false;
};

Result<Digest> describe(const Import& import, const ResolvedImage& image) {
  SPC_TRY(import.agent.describe(image.config_bytes));
  return image.digest;
}

/// Imports by digest. `name` is the reference as the user gave it.
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
  RequestedImage wanted = wanted_image(import.request, name, by);
  InPlace in_place(import, repository.place());
  if (in_place.is_used())
    wanted.in_place = [&](std::size_t layers) { in_place.prepare(layers); };
  StoredImage stored(import.store, wanted, import.config);
  StepNodes nodes;
  look_for_peers(nodes, import);
  repository.take_from(nodes.peers ? &*nodes.peers : nullptr);

  const PullPolicy pull = import.request.pull.value_or(import.config.pull);
  const auto admit = [&](const std::string& manifest, const std::vector<Digest>& indexes) {
    return admission.decide(manifest, indexes, pull, repository);
  };
  const auto known = SPC_TRY(stored.usable(pull, repository, admit, import.agent));
  if (known && SPC_TRY(in_place.has_or_serves(*known))) {
    SPC_TRY(about_store(admission.keep(), import.store));
    return *known;
  }
  if (known && pull == PullPolicy::never) {
    return Error(ErrorKind::not_found,
                 "its layers are neither on this node nor in the shared store")
        .hint("pull it first, or drop --container-pull=never");
  }

  const auto shared = in_place.is_used() ? std::nullopt : shared_store(import);
  const SharedStore* const source = shared ? &*shared : in_place.store();
  repository.look_first_in(source);
  look_for_peers(nodes, import);  // form a new group: the nodes of the first one have the image
  Peers* const peers = nodes.peers && !in_place.is_used() ? &*nodes.peers : nullptr;
  repository.take_from(peers);
  const ResolvedImage image = SPC_TRY(repository.resolve(import.request.platform));
  by.is_found = true;
  const Access access = repository.access();
  SPC_TRY(admit(image.manifest_bytes, image.indexes));
  auto brought = SPC_TRY(in_place.take(image));
  if (!brought) {
    brought = SPC_TRY(bring_layers(import, repository, wanted, image, peers, source));
    in_place.give(image.digest, *brought);
  }
  SPC_TRY(about_store(stored.keep(image, access, *brought, repository.asked_by_others_at()),
                      import.store));
  SPC_TRY(about_store(admission.keep(), import.store));
  if (peers != nullptr) peers->tell_done();
  repository.take_from(nullptr);
  tell_record(import, image.digest, peers);
  return image.digest;
}

/// Imports an image of a registry. A named container needs exactly its original image. If the
/// digest that srun resolved from a tag is not available, the tag is resolved here: this node may
/// use another registry than srun.
Result<Digest> import_from_registry(const Import& import, const ImageReference& name,
                                    UserSourceLink& user) {
  SPC_TRY(import.config.check_registry(name.registry, name.repository));
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

/// Pulls the lower layers of an image that was saved as one layer on another image. The layers are
/// fetched from that image's registry, and this user must have access to it. Afterwards they are
/// recorded as provided by the user. Returns the runs of layers that are one file: the lower layers
/// as in that image.
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
  if (!below.digest) return Error(ErrorKind::corrupt, "does not name the base image by digest");
  SPC_TRY(import.config.check_registry(below.registry, below.repository));
  ImportRequest request = import.request;
  request.resolved = below.digest;  // keep no name for it
  request.manifest.reset();
  request.registry_user.clear();
  request.step_nodes = 0;
  ByDigest by{.digest = below.digest};
  Import other{.request = request,
               .config = import.config,
               .store = import.store,
               .agent = import.agent,
               .http = import.http,
               .timing = import.timing,
               .user = import.user,
               .relay = nullptr,
               .began = import.began};
  const Digest brought =
      SPC_TRY_DURING("the image below: " + below.canonical(), import_by(other, below, by, user));
  const auto record = SPC_TRY(import.store.image(brought));
  for (const Digest& layer : record ? record->layers : std::vector<Digest>())
    SPC_TRY(rights.delivered(layer));
  runs = runs_for(all, record);
  return with_top();
}

/// Imports an image of the user. At each start the user's process identifies the image, and the
/// digest shows whether the store has it.
Result<Digest> import_from_user(const Import& import, const std::string& name,
                                UserSourceLink& user) {
  LocalSource source(user);
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
                            const ImageStore& store, AgentLink& agent, UserSourceLink& user,
                            const RelayStarter* relay) {
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
                      .relay = relay,
                      .began = began};
  auto image = location.kind == ImageLocation::Kind::registry
                   ? import_from_registry(import, location.name, user)
                   : import_from_user(import, name, user);
  if (!image) return std::move(image).error().during_pull(name);
  const auto total = std::chrono::steady_clock::now() - began;
  if (timing.told) agent.write(LogLevel::info, timing.closing_line(name, total));
  if (request.verbose) agent.write(LogLevel::info, timing.line(total));
  return image;
}

}  // namespace spc

// --- main program ---

// The program `import`. The agent starts it as the service user, for one image
// (protocol/import.hpp), or as `import policy` to check config.toml (protocol/policy.hpp). The
// leader starts it as the user as `import trust`, and srun as the user as `import resolve`.

using namespace spc;

namespace {

void give_up_what_is_not_needed() {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  ::umask(022);
  std::signal(SIGPIPE, SIG_IGN);
}

/// Clears the shared store's directory if its file system does not answer: a call that waits for a
/// dead server can last for ever.
void check_shared_store(SharedConfig& shared, AgentLink& agent) {
  if (shared.directory.empty()) return;
  const auto looked = unless_dead([directory = shared.directory] {
    struct statx now {};
    return ::statx(AT_FDCWD, directory.c_str(), AT_STATX_FORCE_SYNC, STATX_MTIME, &now);
  });
  if (looked) return;
  agent.write(LogLevel::warning, formatted("shared store {}: does not answer: pulling without it",
                                           in_quotes(shared.directory)));
  shared.directory.clear();
}

Result<Digest> import_as_asked(AgentLink& agent, const Result<ImageStore>& store) {
  std::string bytes(kMostImportRequest, '\0');
  // recv, unlike recvmsg, drops a descriptor that is sent with the request
  const ssize_t size = ::recv(kImportSource, bytes.data(), bytes.size(), 0);
  if (size <= 0) return Error(ErrorKind::unavailable, "read the import request: there is none");
  bytes.resize(static_cast<std::size_t>(size));
  auto request = SPC_TRY(ImportRequest::parse(bytes));
  // A job's leader may not choose the files.
  if (!agent.is_of_own_user()) request.config = SPC_CONFIG_FILE, request.user_containers.clear();
  auto config = SPC_TRY(read_config(request.config, ::geteuid(), request.user_containers));
  use_processors(config.import_cpus);
  if (!request.user_store) check_shared_store(config.shared, agent);
  const ImportSandbox sandbox{.store = request.only_shared ? -1 : kImportStore,
                              .paths = {config.shared.directory}};
  // The relay's descriptors are created later, in the sandbox. Without a starter the other nodes
  // use other sources.
  std::optional<RelayStarter> relay;
  if (request.step_nodes >= 2 && config.peers.enabled && !request.user_store) {
    if (auto starter = RelayStarter::create()) relay = *std::move(starter);
  }
  SPC_TRY_DURING("entering the sandbox", enter_import_sandbox(sandbox));
  if (request.only_shared) return fill_shared_store(request, config, agent);
  if (!store) return store.error();
  UserSourceLink user(kImportSource, agent);
  return import_image(request, config, *store, agent, user, relay ? &*relay : nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  if (word == "policy" || word == "trust") {
    give_up_what_is_not_needed();
    if (!enter_import_sandbox({})) return 1;
    return word == "policy" ? answer_policy(kImportSocket)
                            : answer_trust(std::span(argv + 2, argv + argc), kImportSocket);
  }
  if (word == kResolve) {
    give_up_what_is_not_needed();
    return answer_resolve(std::span(argv + 2, argv + argc));
  }
  // Must be first: a process that is not dumpable cannot read the path of its own descriptor.
  AgentLink agent(kImportSocket);
  const auto store = ImageStore::open(kImportStore, &agent);
  give_up_what_is_not_needed();
  try {
    const auto image = import_as_asked(agent, store);
    const auto told = image ? agent.done(*image) : agent.failed(image.error());
    return image && told ? 0 : 1;
  } catch (const std::exception& error) {  // out of memory
    static_cast<void>(
        agent.failed(Error(ErrorKind::internal, std::string("import: ") + error.what())));
    return 1;
  }
}
