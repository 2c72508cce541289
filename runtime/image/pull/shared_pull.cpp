// Pull from the shared store: blobs, and layers that another node has converted.

#include "image/pull/shared_pull.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/socket.hpp"
#include "protocol/fuse.hpp"

namespace spc {

// --- shared blob ---

namespace {

constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
// per turn; then the other layers get a turn
constexpr int kChunksATurn = 8;

/// Returns a random pause, because many nodes look at the same time.
std::chrono::milliseconds pause_between_looks() {
  static std::minstd_rand random(std::random_device{}());
  return std::chrono::milliseconds(std::uniform_int_distribution<>(100, 300)(random));
}

/// Longest time without a byte from the node that fetches the blob.
constexpr std::chrono::seconds kPatience{30};

}  // namespace

SharedBlob::~SharedBlob() {
  if (publishing_.joinable()) publishing_.join();
}

bool SharedBlob::find() {
  UniqueFd there =
      is_broken_ ? UniqueFd() : from_.store.find(blob_.digest, blob_.size, from_.place);
  is_whole_ = static_cast<bool>(there);
  if (there) read_file_of(std::move(there));
  return is_whole_;
}

void SharedBlob::look() {
  if (find()) return;
  auto lease = from_.store.lease(blob_.digest, from_.place, others_);
  if (!lease) {
    without_copy(lease.error());
    return fetch(std::nullopt);
  }
  // Look again: the lease's previous holder may have completed the blob.
  if (*lease && !find()) fetch(*std::move(lease));
  if (*lease) return;
  const auto now = Clock::now();
  if (now - waits_since_ >= kPatience) return fetch(std::nullopt);
  next_look_ = now + pause_between_looks();
  if (UniqueFd growing =
          is_broken_ ? UniqueFd() : from_.store.follow(others_.note(), blob_.digest)) {
    read_file_of(std::move(growing));
  }
}

/// Continues at the sink's position. If the bytes differ, the digest will not match.
void SharedBlob::read_file_of(UniqueFd file) {
  file_ = std::move(file);
  has_more_ = true;
}

void SharedBlob::read() {
  for (int i = 0; i < kChunksATurn && file_ && has_more_ && !is_paused_ && passed_ < blob_.size;
       ++i) {
    if (from_chunk_ == chunk_.size()) {
      chunk_.resize(
          static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, blob_.size - passed_)));
      from_chunk_ = 0;
      const ssize_t got =
          ::pread(file_.get(), chunk_.data(), chunk_.size(), static_cast<off_t>(passed_));
      is_broken_ = is_whole_ ? got <= 0 : got < 0;
      has_more_ = got > 0;
      chunk_.resize(has_more_ ? static_cast<std::size_t>(got) : 0);
      if (!has_more_) return;
      waits_since_ = Clock::now();
    }
    const auto bytes = std::span(chunk_).subspan(from_chunk_);
    is_paused_ = sink_.take(bytes) == HttpHandler::Take::later;
    if (is_paused_) return;
    passed_ += bytes.size();
    from_chunk_ = chunk_.size();
  }
}

/// Fetches the blob. Without a lease, it is not shared with other nodes.
void SharedBlob::fetch(std::optional<Lease> lease) {
  file_.reset();
  chunk_.clear();
  from_chunk_ = 0;
  if (lease) {
    auto copy = from_.store.new_blob(blob_.digest, blob_.size);
    if (copy) {
      copy_.emplace(*std::move(copy));
      lease_.emplace(*std::move(lease));
      lease_->tell(copy_->name());
    } else {
      without_copy(copy.error());
    }
  }
  skip_ = passed_;
  fetching_ = from_.fetch(*this);
  fetching_->start();
}

HttpHandler::Take SharedBlob::take(std::span<const std::byte> bytes) {
  const auto known = static_cast<std::size_t>(std::min<std::uint64_t>(skip_, bytes.size()));
  if (known < bytes.size() && sink_.take(bytes.subspan(known)) == HttpHandler::Take::later)
    return HttpHandler::Take::later;
  skip_ -= known;
  passed_ += bytes.size() - known;
  if (copy_) {
    if (auto written = write_all(copy_->file(), bytes); !written) without_copy(written.error());
  }
  return HttpHandler::Take::taken;
}

void SharedBlob::without_copy(const Error& error) {
  from_.log.write(LogLevel::warning, formatted("shared store {}: {}: pulling layer {} without it",
                                               in_quotes(from_.store.directory()), error.message(),
                                               in_quotes(blob_.digest.str())));
  copy_.reset();
  lease_.reset();
}

void SharedBlob::watch(std::vector<pollfd>& descriptors) const {
  if (fetching_) return fetching_->watch(descriptors);
  // A file is always readable, so a poll that includes it returns at once.
  if (file_ && has_more_ && !is_paused_)
    descriptors.push_back({.fd = file_.get(), .events = POLLIN, .revents = 0});
}

void SharedBlob::advance() {
  if (is_published_) lease_.reset();
  if (lease_) lease_->beat();
  if (fetching_) return fetching_->advance();
  read();
  if (!finished() && !is_paused_ && !(file_ && has_more_) && Clock::now() >= next_look_) look();
}

void SharedBlob::resume() {
  is_paused_ = false;
  if (fetching_) fetching_->resume();
}

const char* SharedBlob::whose_fault() const {
  return fetching_ ? fetching_->whose_fault()
                   : "the copy in the shared store was damaged, and is removed: try again";
}

void SharedBlob::proven(bool is_right) {
  if (!is_right && !fetching_) from_.store.remove(blob_.digest);
  if (is_right && !fetching_ && !is_whole_)
    from_.store.adopt(others_.note(), blob_.digest, from_.place);
  if (!is_right || !copy_) {
    copy_.reset();
    lease_.reset();
    return;
  }
  publishing_ = std::thread([this] {
    // If publishing fails, the next node fetches the blob again.
    (void)copy_->publish(from_.place);
    copy_.reset();
    is_published_ = true;
  });
}

// --- turn to convert ---

Result<bool> ConvertingTurn::await(const std::function<Result<bool>()>& look, std::uint64_t bytes) {
  constexpr int kPause = 500;  // milliseconds
  WatchedLease others;
  bool is_told = false;
  // The time to pull all layers at 8 MB/s.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30 + bytes / 8'000'000);
  for (;;) {
    if (SPC_TRY(look())) {
      this->end();
      return true;
    }
    if (lease_ || std::chrono::steady_clock::now() >= end) return false;
    auto lease = shared_.lease(image_, place_, others);
    if (!lease) return false;  // the store cannot be written, which the blobs will report
    if (*lease) {
      lease_.emplace(std::move(**lease));
      keep_beating();  // and look again: the previous holder may have published them
      continue;
    }
    if (!is_told)
      agent_.write(LogLevel::info, "another node converts the image: waiting for its layers");
    is_told = true;
    pollfd agent = agent_.watch();
    ::poll(&agent, 1, kPause);
    SPC_TRY(agent_.check());
  }
}

void ConvertingTurn::keep_beating() {
  beating_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      lease_->beat();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
}

void ConvertingTurn::end() {
  beating_ = std::jthread();
  lease_.reset();
}

// --- layer sharing ---

namespace {

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

LayerSharing::LayerSharing(const SharedStore& shared, const std::string& place, const Digest& image,
                           const LayerLimits& form, const ImageStore& store, AgentLink& agent,
                           LayerRights& rights)
    : shared_(shared),
      place_(place),
      form_(form_text(form)),
      processors_(form.processors),
      store_(store),
      agent_(agent),
      rights_(rights),
      turn_(shared, place, image, agent) {}

SharedStore::Layer LayerSharing::shared_layer(const ImageLayer& layer, const Digest& name) const {
  return {.form = form_, .name = name, .blob = layer.blob.digest, .place = place_};
}

Result<void> LayerSharing::take(PulledLayers& layers) {
  std::uint64_t bytes = 0;
  for (const ImageLayer& layer : layers.missing) bytes += layer.blob.size;
  SPC_TRY(turn_.await([&] { return take_all(layers); }, bytes));
  return {};
}

/// Returns whether no layer is missing any more.
Result<bool> LayerSharing::take_all(PulledLayers& layers) {
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
  return std::ranges::none_of(layers.missing,
                              [&](const ImageLayer& layer) { return is_wanted(layer); });
}

/// Returns the layer's name in the node's store, or empty if it has to be converted. Problems with
/// the shared copy are logged and not returned as an error.
Result<std::optional<Digest>> LayerSharing::take_one(const ImageLayer& layer) {
  LayerLocks locks{.alone = SPC_TRY(store_.try_lock(layer.names.alone)), .fitted = {}};
  if (!locks.alone) return std::optional<Digest>();  // another job on this node is copying it
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
  turn_.end();
}

// --- image in place ---

Result<InPlaceSource> InPlaceSource::open(std::shared_ptr<const SharedStore> shared,
                                          const SharedConfig& config, std::string place,
                                          const LayerLimits& form, AgentLink& agent) {
  Place where{std::move(shared), std::move(place), form_text(form), nullptr};
  if (!config.in_place_key.empty()) {
    // A key of the service user would let this process choose what it believes.
    where.key = std::make_shared<const PublicKey>(
        SPC_TRY_DURING("[shared] in_place_key", PublicKey::of_file(config.in_place_key, 0)));
  }
  InPlaceSource source(std::move(where), agent);
  source.signing_key_ = config.in_place_signing_key;
  return source;
}

Result<std::optional<InPlaceSource::Found>> InPlaceSource::Place::find(
    const Digest& manifest) const {
  const auto note = shared->image_note(manifest, place, form);
  if (!note) return std::optional<Found>();
  if (key && !key->has_signed(note->text, note->signature))
    return Error(ErrorKind::refused, "the note is not signed by " + in_quotes(key->name()));
  Found found{.image = SPC_TRY(ImageInPlace::parse(note->text)), .layers = {}};
  if (found.image.manifest != manifest || found.image.place != place || found.image.form != form)
    return Error(ErrorKind::refused, "the note is another image's");
  for (const auto& layer : found.image.layers)
    found.layers.push_back(SPC_TRY(shared->open_layer(found.image, layer)));
  return std::optional(std::move(found));
}

void InPlaceSource::prepare(std::size_t layers) {
  if (auto sockets = agent_.new_server(layers)) prepared_ = *std::move(sockets);
}

Result<std::optional<ImageInPlace>> InPlaceSource::serve(const Digest& manifest) {
  auto answer = unless_dead([place = place_, manifest] { return place.find(manifest); });
  if (!answer) return Error(ErrorKind::unavailable, "it does not answer");
  auto found = SPC_TRY(*std::move(answer));
  if (!found) return std::optional<ImageInPlace>();
  if (prepared_.empty()) prepare(found->layers.size());
  const auto sockets = std::exchange(prepared_, {});
  if (sockets.size() != found->layers.size())
    return Error(ErrorKind::unavailable, "its layers cannot be served");
  for (std::size_t i = 0; i < found->layers.size(); ++i) {
    const auto& layer = found->image.layers[i];
    const int passed[] = {found->layers[i].file.get(), found->layers[i].hashes.get()};
    SPC_TRY(send_struct(
        sockets[i].get(),
        FuseLoan{.verified_bytes = layer.bytes, .layer = layer.name, .hashes = layer.hashes},
        passed));
  }
  return std::optional(std::move(found->image));
}

Result<void> InPlaceSource::give(const Digest& manifest, const std::vector<HeldLayer>& layers,
                                 const std::string& facts) {
  ImageInPlace image{.manifest = manifest,
                     .place = place_.place,
                     .form = place_.form,
                     .layers = {},
                     .facts = facts};
  for (const HeldLayer& layer : layers) {
    if (!layer.file) return Error(ErrorKind::unavailable, "a layer was evicted meanwhile");
    const SharedStore::Layer placed{
        .form = place_.form, .name = layer.name, .blob = {}, .place = place_.place};
    image.layers.push_back(SPC_TRY(place_.shared->place_layer(placed, layer.file.get())));
  }
  const auto signature = place_.key ? SPC_TRY(sign_by_key_in(signing_key_, image.serialize())) : "";
  return place_.shared->note_image(image, signature);
}

}  // namespace spc
