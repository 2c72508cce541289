// Scheduling of the parallel pull of an image's layers, and the merging of small ones.

#include "image/pull/pull_layers.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <list>
#include <map>
#include <system_error>
#include <utility>

#include "base/bytes.hpp"
#include "base/format.hpp"
#include "image/store/store.hpp"

namespace spc {

// --- import timing ---

namespace {

/// Returns the layer's times, and which of them was the bound.
std::string line_of(const LayerTimes& layer) {
  const char* const bound = layer.link >= std::max(layer.inflate, layer.write) ? "the link"
                            : layer.inflate >= layer.write                     ? "inflating"
                                                                               : "writing";
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(),
                "longest: layer %zu (%.1f MB), bound by %s: link %.2f, inflate %.2f, write %.2f",
                layer.number, static_cast<double>(layer.bytes) / 1e6, bound,
                static_cast<double>(layer.link) / 1e3, static_cast<double>(layer.inflate) / 1e3,
                static_cast<double>(layer.write) / 1e3);
  return text.data();
}

}  // namespace

std::string ImportTiming::line(Seconds total) const {
  std::array<char, 400> text{};
  if (layers == 0) {
    std::snprintf(text.data(), text.size(), "import %.2f s: all layers present", total.count());
  } else {
    const Seconds before = total - others - fetch - convert - publish;
    std::snprintf(text.data(), text.size(),
                  "import %.2f s: resolve %.2f, fetch %.2f (%zu layer%s, %.1f MB), wait for the "
                  "converter %.2f, "
                  "verify and publish %.2f, wait for other imports %.2f",
                  total.count(), before.count(), fetch.count(), layers, layers == 1 ? "" : "s",
                  static_cast<double>(bytes) / 1e6, convert.count(), publish.count(),
                  others.count());
  }
  return text.data() + (longest.number > 0 ? "; " + line_of(longest) : std::string());
}

std::string ImportTiming::closing_line(const std::string& image, Seconds total) const {
  std::array<char, 40> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%.1f", total.count());
  return formatted("pulled {}: {} in {} s, {} of {} layers", image, human_bytes(bytes),
                   seconds.data(), layers, all_layers);
}

// --- blob feed ---

namespace {

constexpr std::size_t kMostWaiting = 512 << 10;

void signal_event(const UniqueFd& event) {
  const std::uint64_t one = 1;
  (void)!::write(event.get(), &one, sizeof one);  // fails only if the counter is high: it is set
}

}  // namespace

BlobFeed::BlobFeed(int output, std::uint64_t size) : output_(output) {
  if (size < kLeastForThread) return;
  changed_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!changed_ || !stop_) return;  // works without a thread
  filling_.reserve(kMostWaiting);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    // The user's limit of processes is reached.
  }
}

BlobFeed::~BlobFeed() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    filled_.notify_one();
  }
  signal_event(stop_);
  thread_.join();
}

bool BlobFeed::take(std::span<const std::byte> bytes) {
  if (!thread_.joinable()) {
    advance();
    if (waiting_.size() - waiting_from_ > kMostWaiting) return false;
    hash_.update(bytes);
    const auto rest = waiting_.empty() ? write_some(bytes) : bytes;
    waiting_.insert(waiting_.end(), rest.begin(), rest.end());
    return true;
  }
  const std::scoped_lock lock(mutex_);
  awaited_ = !filling_.empty() && filling_.size() + bytes.size() > kMostWaiting;
  if (awaited_) return false;
  if (filling_.empty() && !working_) filled_.notify_one();
  filling_.insert(filling_.end(), bytes.begin(), bytes.end());
  return true;
}

void BlobFeed::advance() {
  if (thread_.joinable()) {
    std::uint64_t count = 0;
    (void)!::read(changed_.get(), &count, sizeof count);  // fails if the event is not set
    return;
  }
  if (waiting_.empty()) return;
  const auto rest = write_some(std::span(waiting_).subspan(waiting_from_));
  waiting_from_ = waiting_.size() - rest.size();
  if (rest.empty()) {
    waiting_.clear();
    waiting_from_ = 0;
  }
}

bool BlobFeed::has_room() {
  if (!thread_.joinable()) return waiting_.empty();
  const std::scoped_lock lock(mutex_);
  awaited_ = !filling_.empty();
  return !awaited_;
}

bool BlobFeed::is_empty() {
  if (!thread_.joinable()) return waiting_.empty();
  const std::scoped_lock lock(mutex_);
  awaited_ = working_ || !filling_.empty();
  return !awaited_;
}

void BlobFeed::cut() {
  if (!cut_.exchange(true) && thread_.joinable()) signal_event(stop_);
}

void BlobFeed::watch(std::vector<pollfd>& descriptors) const {
  if (thread_.joinable()) {
    descriptors.push_back({.fd = changed_.get(), .events = POLLIN, .revents = 0});
  } else if (!waiting_.empty() && !cut_) {
    descriptors.push_back({.fd = output_, .events = POLLOUT, .revents = 0});
  }
}

/// Writes to the pipe. Returns the bytes that did not fit.
std::span<const std::byte> BlobFeed::write_some(std::span<const std::byte> bytes) {
  if (output_ < 0) return {};
  while (!bytes.empty() && !cut_) {
    const ssize_t written = ::write(output_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      return bytes;
    } else if (errno != EINTR) {
      cut_ = true;
    }
  }
  return {};
}

void BlobFeed::write_all_of(std::span<const std::byte> bytes) {
  for (auto rest = write_some(bytes); !rest.empty(); rest = write_some(rest)) {
    std::array<pollfd, 2> events{{{.fd = output_, .events = POLLOUT, .revents = 0},
                                  {.fd = stop_.get(), .events = POLLIN, .revents = 0}}};
    ::poll(events.data(), events.size(), -1);
    if (events[1].revents != 0) return;
  }
}

void BlobFeed::run() {
  std::vector<std::byte> piece;
  piece.reserve(kMostWaiting);
  std::unique_lock lock(mutex_);
  for (;;) {
    working_ = false;
    if (awaited_ && filling_.empty()) signal_event(changed_);
    filled_.wait(lock, [&] { return stopped_ || !filling_.empty(); });
    if (stopped_) return;
    std::swap(piece, filling_);
    filling_.clear();
    working_ = true;
    if (awaited_) signal_event(changed_);
    lock.unlock();
    hash_.update(piece);
    write_all_of(piece);
    lock.lock();
  }
}

// --- layer proof ---

namespace {

/// Compares the digest of all bytes with the layer's, when the blob has ended.
Result<void> check_digest(BlobStream& blob, BlobFeed& feed, const ImageLayer& layer) {
  SPC_TRY(blob.outcome());
  const Digest digest = feed.finish();
  blob.proven(digest == layer.blob.digest);
  if (digest == layer.blob.digest) return {};
  return std::move(Error(ErrorKind::corrupt,
                         formatted("{}: has digest {} instead", name_of(layer), digest.str()))
                       .hint(blob.whose_fault()));
}

}  // namespace

std::unique_ptr<LayerProof> LayerProof::start(ImageLayer layer, const Digest& name,
                                              LayerLocks locks, ImageSource& source) {
  std::unique_ptr<LayerProof> proof(new LayerProof(std::move(layer), name, std::move(locks)));
  proof->blob_ = source.open_layer(proof->layer_.blob, *proof);
  proof->blob_->start();
  return proof;
}

void LayerProof::watch(std::vector<pollfd>& descriptors) const {
  feed_.watch(descriptors);
  if (!paused_) blob_->watch(descriptors);
}

HttpHandler::Take LayerProof::take(std::span<const std::byte> bytes) {
  paused_ = !feed_.take(bytes);
  if (paused_) return HttpHandler::Take::later;
  received_ += bytes.size();
  came_.add(blob_->comes_from(), bytes.size());
  return HttpHandler::Take::taken;
}

Result<bool> LayerProof::advance() {
  blob_->advance();
  feed_.advance();
  if (paused_ && feed_.has_room()) {
    paused_ = false;
    blob_->resume();
  }
  if (!blob_->finished() || !feed_.is_empty()) return false;
  SPC_TRY(check_digest(*blob_, feed_, layer_));
  return true;
}

// --- layer rights ---

Result<bool> LayerRights::may_take(const Digest& layer) {
  if (store_.was_delivered(layer, origin_)) return true;
  if (!public_) {
    public_.emplace();
    const std::int64_t now = std::time(nullptr);
    for (const StoredRecord& record : SPC_TRY(list_records(store_))) {
      if (record.public_until > now) public_->insert(record.layers.begin(), record.layers.end());
    }
  }
  return public_->contains(layer);
}

// --- layer pull ---

namespace {

// If the converter fails, hash the rest of the blob up to this size in bytes: a wrong digest blames
// the registry, a right one the image.
constexpr std::uint64_t kWorthKnowing = std::uint64_t{1} << 30;

constexpr char kBrokenImage[] = "the image is corrupt: rebuild and push it";

bool is_readable(int descriptor) {
  pollfd one{.fd = descriptor, .events = POLLIN};
  return ::poll(&one, 1, 0) == 1;
}

}  // namespace

LayerPull::LayerPull(ImageLayer layer, LayerLocks locks, std::shared_ptr<StoreObject> object,
                     LayerProcess converter)
    : layer_(std::move(layer)),
      name_(layer_.names.alone),
      locks_(std::move(locks)),
      object_(std::move(object)),
      converter_(std::move(converter)),
      feed_(converter_.input(), layer_.blob.size) {}

Result<std::unique_ptr<LayerPull>> LayerPull::start(ImageLayer layer, LayerLocks locks,
                                                    ImageSource& source, AgentLink& agent,
                                                    LayerLimits limits) {
  // A small layer stays uncompressed whatever the disk does: start no threads that compress.
  if (limits.plain_first != 0 && layer.blob.size < BlobFeed::kLeastForThread)
    limits.compression = LayerCompression::none;
  auto object = SPC_TRY(agent.new_object(order_of(limits)));
  LayerProcess converter(SPC_TRY_DURING("convert " + name_of(layer), object->writer()));
  const int input = converter.input();
  if (::fcntl(input, F_SETFL, O_WRONLY | O_NONBLOCK) != 0)
    return Error::from_errno(errno, "prepare the pipe to the converter");
  std::unique_ptr<LayerPull> pull(
      new LayerPull(std::move(layer), std::move(locks), std::move(object), std::move(converter)));
  pull->blob_ = source.open_layer(pull->layer_.blob, *pull);
  pull->blob_->start();
  return pull;
}

void LayerPull::watch(std::vector<pollfd>& descriptors) const {
  if (asked_for_name_) return descriptors.push_back(object_->watch());
  if (!input_closed_) feed_.watch(descriptors);
  if (!paused_ && !blob_->finished()) blob_->watch(descriptors);
  if (!feed_.is_cut() && !wants_below_) {
    descriptors.push_back({.fd = converter_.result_descriptor(), .events = POLLIN});
    descriptors.push_back({.fd = converter_.below_descriptor(), .events = POLLIN});
  }
}

LayerPhase LayerPull::phase() const {
  if (asked_for_name_) return LayerPhase::publishing;
  return paused_ || blob_->finished() ? LayerPhase::converting : LayerPhase::fetching;
}

HttpHandler::Take LayerPull::take(std::span<const std::byte> bytes) {
  paused_ = !feed_.take(bytes);
  if (paused_) return HttpHandler::Take::later;
  received_ += bytes.size();
  came_.add(blob_->comes_from(), bytes.size());
  return HttpHandler::Take::taken;
}

Result<bool> LayerPull::advance() {
  // Call it after the end as well: the stream may have a lease that other processes watch.
  blob_->advance();
  if (asked_for_name_) return object_->is_published();
  feed_.advance();
  if (paused_ && feed_.has_room()) {
    paused_ = false;
    blob_->resume();
  }
  // The converter has ended: finish() has the reason.
  if (!input_closed_ && is_readable(converter_.result_descriptor())) feed_.cut();
  if (feed_.is_cut() && !blob_->finished() && layer_.blob.size - received_ > kWorthKnowing) {
    SPC_TRY(converted());
    return Error(ErrorKind::internal,
                 formatted("convert {}: the converter stopped reading", name_of(layer_)));
  }
  if (!input_closed_) {
    if (!blob_->finished() || !feed_.is_empty()) return false;
    SPC_TRY(check_digest(*blob_, feed_, layer_));
    converter_.close_input();
    input_closed_ = true;
  }
  if (!is_readable(converter_.result_descriptor())) {
    if (!wants_below_ && is_readable(converter_.below_descriptor())) {
      wants_below_ = true;
      // a fitted layer does not get that name
      locks_.alone.reset();
    }
    return false;
  }
  SPC_TRY(check_archive());
  SPC_TRY(object_->publish(name_));
  asked_for_name_ = true;
  return false;
}

Result<void> LayerPull::give_below(std::span<const int> layers) {
  wants_below_ = false;
  // Ignore errors: if the converter has ended, its report or exit status has the reason.
  (void)converter_.give_below(layers);
  return {};
}

/// Returns the converter's result. Reports bytes that it cannot accept as an error of the image.
Result<ConvertedLayer> LayerPull::converted() {
  auto layer = converter_.finish();
  if (layer) return layer;
  auto error = std::move(layer).error().during("convert " + name_of(layer_));
  const bool image_is_bad = error.kind() == ErrorKind::corrupt ||
                            error.kind() == ErrorKind::invalid ||
                            error.kind() == ErrorKind::refused;
  return image_is_bad ? std::move(error).hint(kBrokenImage) : std::move(error);
}

Result<void> LayerPull::check_archive() {
  const ConvertedLayer layer = SPC_TRY(converted());
  if (layer.fitted != 0) name_ = layer_.names.fitted;
  times_ = {.number = layer_.place + 1,
            .bytes = layer_.blob.size,
            .link = layer.link_ms,
            .inflate = layer.inflate_ms,
            .write = layer.write_ms};
  if (layer.diff_id == layer_.diff_id) return {};
  return Error(ErrorKind::corrupt,
               formatted(
                   "{}: its uncompressed digest is {} instead of {} as in the image configuration",
                   name_of(layer_), layer.diff_id.str(), layer_.diff_id.str()))
      .hint(kBrokenImage);
}

// --- pull of all layers ---

namespace {

using Clock = std::chrono::steady_clock;

class Progress {
 public:
  Progress(const PullContext& context, const std::vector<ImageLayer>& missing)
      : context_(context), there_(context.layers - missing.size()) {
    for (const auto& layer : missing) total_ += layer.blob.size;
  }
  void layer_done(const ImageLayer& layer) {
    ++there_;
    finished_ += layer.blob.size;
  }
  void complete() {
    context_.timing.all_layers = context_.layers;
    if (!context_.meter || total_ == 0) return;
    context_.agent.meter(total_, total_);
    context_.timing.told = true;
  }
  /// Reports progress. `underway` bytes of unfinished layers have arrived, other processes convert
  /// `elsewhere` layers, and other nodes fetch `by_nodes` layers.
  void tell(std::uint64_t underway, std::size_t elsewhere, std::size_t by_nodes) {
    if (context_.peers != nullptr) context_.peers->tell_progress(finished_ + underway, total_);
    // srun's line then shows the progress of all nodes
    if (context_.peers != nullptr && context_.peers->srun_listens()) return;
    const auto now = Clock::now();
    if (now < next_) return;
    if (context_.meter) {
      next_ = now + kMeterPause;
      context_.agent.meter(finished_ + underway, total_);
      return;
    }
    std::string line =
        formatted("pulling {}: {}{} of {} layers, {}", context_.image, bar(finished_ + underway),
                  there_, context_.layers, part_of_bytes(finished_ + underway, total_));
    if (elsewhere > 0)
      line += formatted(" (another job on this node converts {} of them)", elsewhere);
    if (by_nodes > 0) line += formatted(" (another node brings {} of them)", by_nodes);
    if (line == last_) return;
    next_ = now + (context_.bar ? kBarPause : pause_);
    pause_ = std::min<std::chrono::milliseconds>(2 * pause_, kLongestPause);
    context_.agent.write(LogLevel::info, line);
    context_.timing.told = true;
    last_ = std::move(line);
  }

 private:
  [[nodiscard]] std::string bar(std::uint64_t done) const {
    constexpr std::uint64_t kWide = 20;
    if (!context_.bar) return {};
    const std::uint64_t full = total_ == 0 ? kWide : std::min(kWide, kWide * done / total_);
    return formatted("[{}{}] ", std::string(full, '#'), std::string(kWide - full, '.'));
  }

  const PullContext& context_;
  std::size_t there_;
  std::uint64_t total_ = 0;
  std::uint64_t finished_ = 0;
  /// The first line follows soon, later ones at growing intervals: they stay in the job's output.
  static constexpr std::chrono::seconds kLongestPause{15};
  static constexpr std::chrono::milliseconds kMeterPause{100}, kBarPause{250};
  std::chrono::milliseconds pause_{2000};
  Clock::time_point next_{};
  std::string last_;
};

/// Returns whether the error is about the image's content or a layer made of it.
bool is_about_bytes(const Error& error) {
  return error.kind() == ErrorKind::corrupt || error.kind() == ErrorKind::invalid ||
         error.kind() == ErrorKind::refused;
}

struct Underway {
  ImageLayer layer;
  std::unique_ptr<LayerTask> task;
};

/// Returns the phase to which the next time interval is added.
ImportTiming::Seconds& phase_of(const std::list<Underway>& underway, ImportTiming& timing) {
  const auto any = [&](LayerPhase phase) {
    return std::any_of(underway.begin(), underway.end(),
                       [&](const Underway& one) { return one.task->phase() == phase; });
  };
  if (underway.empty()) return timing.others;
  if (any(LayerPhase::fetching)) return timing.fetch;
  return any(LayerPhase::converting) ? timing.convert : timing.publish;
}

/// Limit of the wait for a process that pulls the same layer. Do not wait for one that pulls slower
/// than 8 MB/s (its registry may stall on purpose) or whose heartbeat stopped: its user can stop
/// it.
std::chrono::seconds patience_for(const ImageLayer& layer) {
  return std::chrono::seconds(30 + layer.blob.size / 8'000'000);
}
constexpr std::chrono::seconds kBeat{1}, kNoPulse{10};

/// Wait for another process that pulls a layer.
class LayerWait {
 public:
  explicit LayerWait(bool pulse) : pulse_(pulse) {}
  [[nodiscard]] bool is_enough(const ImageLayer& layer, bool pulse) {
    const auto now = Clock::now();
    if (std::exchange(pulse_, pulse) != pulse) last_beat_ = now;
    return now - since_ >= patience_for(layer) || now - last_beat_ >= kNoPulse;
  }

 private:
  bool pulse_;
  Clock::time_point since_ = Clock::now(), last_beat_ = since_;
};

Result<int> file_of(const HeldLayer& layer) {
  if (layer.file) return layer.file.get();
  return Error(ErrorKind::unavailable,
               "layer " + layer.name.str() + " was evicted while the image was pulled");
}

class Pulling {
 public:
  Pulling(PullContext context, PulledLayers layers)
      : context_(std::move(context)),
        progress_(context_, layers.missing),
        queue_(layers.missing.begin(), layers.missing.end()),
        held_(std::move(layers.held)) {
    queue_.sort([](const auto& a, const auto& b) { return a.blob.size > b.blob.size; });
    for (const auto& layer : queue_) context_.timing.bytes += layer.blob.size;
    context_.timing.layers += queue_.size();
  }

  Result<std::vector<HeldLayer>> run() {
    for (;;) {
      SPC_TRY(start_some());
      find_facts();
      if (queue_.empty() && underway_.empty()) break;
      const TimedPhase phase(phase_of(underway_, context_.timing));
      SPC_TRY(wait());
      SPC_TRY(advance());
      SPC_TRY(give_below());
    }
    progress_.complete();
    std::vector<HeldLayer> all;
    for (auto& layer : held_) all.push_back(*std::move(layer));
    return all;
  }

 private:
  /// Starts layers while there are free slots. Locks are tried, never waited for, while locks for
  /// layers not yet started are held, so importers cannot deadlock.
  Result<void> start_some() {
    elsewhere_ = 0;
    for (auto layer = queue_.begin(); layer != queue_.end();) {
      if (!has_room_for(*layer) || !SPC_TRY(start(*layer))) {
        ++layer;
      } else {
        layer = queue_.erase(layer);
      }
    }
    return {};
  }

  /// Limits tasks that wait for layers below, because each keeps its tree in memory. The lowest
  /// incomplete layer never waits and can always be started. A layer that is being published needs
  /// no converter, so the next one need not wait for the verifier and the disk. Small layers share
  /// a slot: their fetches and starts are mostly waits.
  [[nodiscard]] bool has_room_for(const ImageLayer& layer) const {
    std::size_t waiting = 0, publishing = 0, shares = 0;
    for (const Underway& one : underway_) {
      if (one.task->wants_below())
        ++waiting;
      else if (one.task->phase() == LayerPhase::publishing)
        ++publishing;
      else
        shares += shares_of(one.layer);
    }
    if (shares > 0 && shares + shares_of(layer) > context_.small_in_slot * context_.max_parallel)
      return false;
    if (publishing >= kMostPublishing) return false;
    return waiting < kMostWaiting || are_complete_below(layer.place);
  }
  [[nodiscard]] std::size_t shares_of(const ImageLayer& layer) const {
    return layer.blob.size < BlobFeed::kLeastForThread ? 1 : context_.small_in_slot;
  }
  [[nodiscard]] bool are_complete_below(std::size_t place) const {
    return std::all_of(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(place),
                       [](const auto& layer) { return layer.has_value(); });
  }

  /// Returns false if another process is pulling the layer.
  Result<bool> start(const ImageLayer& layer) {
    LayerLocks locks{.alone = SPC_TRY(context_.store.try_lock(layer.names.alone)), .fitted = {}};
    if (locks.alone) {
      if (auto fitted = SPC_TRY(context_.store.try_lock(layer.names.fitted)))
        locks.fitted.emplace(*std::move(fitted));
    }
    const bool locked = locks.alone && locks.fitted;
    // Check under the locks: their previous holder has published the layer or failed.
    const auto there = name_in_store(layer, context_.store);
    if (there && SPC_TRY(context_.rights.may_take(*there))) {
      leave_to_others(layer);
      finish(layer, *there);
    } else if (!locked && !has_waited_enough(layer)) {
      leave_to_others(layer);
      ++elsewhere_;
      return false;
    } else if (there) {
      underway_.push_back(
          {layer, LayerProof::start(layer, *there, std::move(locks), context_.source)});
    } else {
      auto pull = SPC_TRY(LayerPull::start(layer, std::move(locks), context_.source, context_.agent,
                                           context_.limits));
      underway_.push_back({layer, std::move(pull)});
    }
    return true;
  }

  void leave_to_others(const ImageLayer& layer) {
    if (context_.peers != nullptr)
      context_.peers->will_not_fetch(layer.blob.digest, layer.blob.size);
  }

  bool has_waited_enough(const ImageLayer& layer) {
    const bool pulse = context_.store.pulse_of_others(layer.names.alone);
    return waited_.try_emplace(layer.place, pulse).first->second.is_enough(layer, pulse);
  }

  void beat() {
    if (Clock::now() < next_beat_) return;
    next_beat_ = Clock::now() + kBeat;
    beat_ = !beat_;
    for (const auto& one : underway_) context_.store.pulse(one.layer.names.alone, beat_);
  }

  Result<void> wait() {
    beat();
    std::uint64_t received = 0;
    std::size_t by_nodes = 0;
    std::vector<pollfd> watched{context_.agent.watch()};
    for (const auto& one : underway_) {
      received += one.task->received();
      if (one.task->waits_for_node()) ++by_nodes;
      one.task->watch(watched);
    }
    progress_.tell(received, elsewhere_, by_nodes);
    // The time-out is for retries that are due and locks of other processes. All other events wake
    // the poll.
    SPC_TRY(context_.http.wait(std::chrono::milliseconds(100), watched));
    return context_.agent.check();
  }

  Result<void> advance() {
    for (auto one = underway_.begin(); one != underway_.end();) {
      auto done = one->task->advance();
      if (!done && is_about_bytes(done.error()) && one->task->blames_nodes()) {
        one->task.reset();  // release its locks before they are requested again
        queue_.push_front(one->layer);
        one = underway_.erase(one);
      } else if (SPC_TRY(std::move(done))) {
        // Record the delivery before the locks are released, so that a job waiting for the same
        // image need not fetch the layer again.
        SPC_TRY(context_.rights.delivered(one->task->name()));
        context_.timing.from += one->task->came();
        context_.timing.converted += one->task->converts() ? 1 : 0;
        if (one->task->converts() && one->task->times().total() >= context_.timing.longest.total())
          context_.timing.longest = one->task->times();
        finish(one->layer, one->task->name());
        context_.store.pulse(one->layer.names.alone, false);
        one = underway_.erase(one);
      } else {
        ++one;
      }
    }
    return {};
  }

  Result<void> give_below() {
    for (const auto& one : underway_) {
      if (!one.task->wants_below() || !are_complete_below(one.layer.place)) continue;
      std::vector<int> below;
      for (std::size_t place = 0; place < one.layer.place; ++place) {
        if (place > 0 && is_same_file(*held_[place - 1], *held_[place])) continue;
        below.push_back(SPC_TRY(file_of(*held_[place])));
      }
      SPC_TRY(one.task->give_below(below));
    }
    return {};
  }

  void find_facts() {
    if (!queue_.empty() || context_.facts.is_read()) return;
    context_.facts.prepare();
    std::vector<int> layers(held_.size(), -1);
    for (std::size_t place = 0; place < held_.size(); ++place)
      layers[place] = held_[place] ? held_[place]->file.get() : -1;
    for (const auto& one : underway_) layers[one.layer.place] = one.task->written();
    if (std::ranges::count(layers, -1) != 0) return;
    for (std::size_t place = held_.size(); place-- > 1;) {
      const auto &below = held_[place - 1], &here = held_[place];
      if (below && here && is_same_file(*below, *here))
        layers.erase(layers.begin() + static_cast<std::ptrdiff_t>(place));
    }
    context_.facts.read(layers);
  }

  void finish(const ImageLayer& layer, const Digest& name) {
    progress_.layer_done(layer);
    held_[layer.place] = HeldLayer{name, context_.store.hold_layer(name)};
  }

  static constexpr std::size_t kMostWaiting = 4, kMostPublishing = 16;

  PullContext context_;
  Progress progress_;
  std::list<ImageLayer> queue_;
  std::list<Underway> underway_;
  std::vector<std::optional<HeldLayer>> held_;
  std::map<std::size_t, LayerWait> waited_;  // by place
  std::size_t elsewhere_ = 0;                // layers that other processes convert
  bool beat_ = false;
  Clock::time_point next_beat_{};
};

}  // namespace

std::optional<Digest> name_in_store(const ImageLayer& layer, const ImageStore& store) {
  for (const Digest& name : {layer.names.alone, layer.names.fitted}) {
    if (store.has_layer(name)) return name;
  }
  return std::nullopt;
}

Result<std::vector<HeldLayer>> pull_layers(const PullContext& context, PulledLayers layers) {
  return Pulling(context, std::move(layers)).run();
}

namespace {

/// Merges the layers of a run on top of the layers below it. `files` has all of them, bottom layer
/// first.
Result<void> write_merged(const PullContext& context, const Digest& name, std::uint32_t merges,
                          std::span<const int> files) {
  LayerLimits limits = context.limits;
  limits.merges = merges;
  const auto object = SPC_TRY(context.agent.new_object(order_of(limits)));
  LayerProcess writer(SPC_TRY(object->writer()));
  writer.close_input();
  // if the writer has ended, its report or exit status has the reason
  (void)writer.give_below(files);
  SPC_TRY(writer.finish());
  SPC_TRY(object->publish(name));
  while (!SPC_TRY(object->is_published())) {
    pollfd answer = object->watch();
    ::poll(&answer, 1, -1);
  }
  return {};
}

}  // namespace

Result<std::vector<HeldLayer>> merge_layers(const PullContext& context,
                                            std::span<const LayerRun> runs,
                                            std::span<const ImageLayer> layers,
                                            std::vector<HeldLayer> held) {
  std::vector<HeldLayer> merged;
  for (const LayerRun& run : runs) {
    const Digest name =
        run.is_merged() ? merged_name(run.begin, layers[run.end - 1].names) : held[run.begin].name;
    if (held[run.begin].name == name) {
      merged.push_back(std::move(held[run.begin]));
      continue;
    }
    // Prevent eviction until the file is held.
    const auto lock = SPC_TRY(context.store.try_lock(name));
    std::vector<int> files;
    for (const HeldLayer& below : merged) files.push_back(SPC_TRY(file_of(below)));
    for (std::size_t place = run.begin; place < run.end; ++place)
      files.push_back(SPC_TRY(file_of(held[place])));
    if (!context.store.has_layer(name)) {
      SPC_TRY_DURING(
          formatted("merge layers {} to {}", run.begin + 1, run.end),
          write_merged(context, name, static_cast<std::uint32_t>(run.end - run.begin), files));
    }
    SPC_TRY(context.rights.delivered(name));
    merged.push_back({name, context.store.hold_layer(name)});
  }
  return merged;
}

}  // namespace spc
