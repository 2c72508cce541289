#include "image/pull/pull_layers.hpp"

#include <algorithm>
#include <list>
#include <map>
#include <utility>

#include "base/format.hpp"
#include "image/pull/layer_proof.hpp"

namespace spc {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t megabytes(std::uint64_t bytes) { return (bytes + 500'000) / 1'000'000; }

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
    if (context_.meter && total_ > 0) context_.agent.meter(total_, total_);
  }
  /// `underway` bytes have come of layers that are not finished; others convert `elsewhere` layers;
  /// other nodes bring `by_nodes`.
  void tell(std::uint64_t underway, std::size_t elsewhere, std::size_t by_nodes) {
    if (context_.peers != nullptr) context_.peers->tell_progress(finished_ + underway, total_);
    if (context_.peers != nullptr && context_.peers->srun_listens())
      return;  // and tells the user of all nodes
    const auto now = Clock::now();
    if (now < next_) return;
    if (context_.meter) {
      next_ = now + kMeterPause;
      context_.agent.meter(finished_ + underway, total_);
      return;
    }
    std::string line =
        formatted("pulling {}: {} of {} layers, {} of {} MB", context_.image, there_,
                  context_.layers, megabytes(finished_ + underway), megabytes(total_));
    if (elsewhere > 0)
      line += formatted(" (another job on this node converts {} of them)", elsewhere);
    if (by_nodes > 0) line += formatted(" (another node brings {} of them)", by_nodes);
    if (line == last_) return;
    next_ = now + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    context_.agent.write(LogLevel::info, line);
    last_ = std::move(line);
  }

 private:
  const PullContext& context_;
  std::size_t there_;
  std::uint64_t total_ = 0;
  std::uint64_t finished_ = 0;
  /// A line soon, then fewer and fewer: they go into the job's output for good.
  static constexpr std::chrono::seconds kLongestPause{15};
  static constexpr std::chrono::milliseconds kMeterPause{100};
  std::chrono::seconds pause_{2};
  Clock::time_point next_{};
  std::string last_;
};

/// The image is wrong, or what came of it.
bool is_about_bytes(const Error& error) {
  return error.kind() == ErrorKind::corrupt || error.kind() == ErrorKind::invalid ||
         error.kind() == ErrorKind::refused;
}

struct Underway {
  ImageLayer layer;
  std::unique_ptr<LayerTask> task;
};

/// The phase that the next piece of time belongs to.
ImportTiming::Seconds& phase_of(const std::list<Underway>& underway, ImportTiming& timing) {
  const auto any = [&](LayerPhase phase) {
    return std::any_of(underway.begin(), underway.end(),
                       [&](const Underway& one) { return one.task->phase() == phase; });
  };
  if (underway.empty()) return timing.others;
  if (any(LayerPhase::fetching)) return timing.fetch;
  return any(LayerPhase::converting) ? timing.convert : timing.publish;
}

/// Whoever brings a layer at less than 8 MB/s is not waited for to the end: he may have a registry
/// of his own that is slow on purpose. Nor is he whose pulse has stopped, as his user can stop him.
std::chrono::seconds patience_for(const ImageLayer& layer) {
  return std::chrono::seconds(30 + layer.blob.size / 8'000'000);
}
constexpr std::chrono::seconds kBeat{1}, kNoPulse{10};

/// For another process, which brings a layer.
class Waited {
 public:
  explicit Waited(bool pulse) : pulse_(pulse) {}
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
  /// Starts layers as far as there is room. Nobody waits for a lock while he holds one for a layer
  /// that he has not begun, so processes that want the same layers cannot block each other.
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

  /// What waits for layers below it keeps its tree in memory: there are not too many of these, and
  /// the lowest layer that is not complete, which never waits, can always be started.
  [[nodiscard]] bool has_room_for(const ImageLayer& layer) const {
    const auto waiting = static_cast<std::size_t>(
        std::count_if(underway_.begin(), underway_.end(),
                      [](const Underway& one) { return one.task->wants_below(); }));
    if (underway_.size() - waiting >= context_.max_parallel) return false;
    return waiting < kMostWaiting || are_complete_below(layer.place);
  }
  [[nodiscard]] bool are_complete_below(std::size_t place) const {
    return std::all_of(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(place),
                       [](const auto& layer) { return layer.has_value(); });
  }

  /// False: another process is at it.
  Result<bool> start(const ImageLayer& layer) {
    LayerLocks locks{.alone = SPC_TRY(context_.store.try_lock(layer.names.alone)), .fitted = {}};
    if (locks.alone) {
      if (auto fitted = SPC_TRY(context_.store.try_lock(layer.names.fitted)))
        locks.fitted.emplace(*std::move(fitted));
    }
    const bool locked = locks.alone && locks.fitted;
    // Looked at under the locks: whoever had them before has delivered the layer or failed.
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
    // The time-out serves locks of others and tries that are due; everything else wakes us itself.
    SPC_TRY(context_.http.wait(std::chrono::milliseconds(100), watched));
    return context_.agent.check();
  }

  Result<void> advance() {
    for (auto one = underway_.begin(); one != underway_.end();) {
      auto done = one->task->advance();
      if (!done && is_about_bytes(done.error()) && one->task->blames_nodes()) {
        one->task.reset();  // its locks are free before they are wanted again
        queue_.push_front(one->layer);
        one = underway_.erase(one);
      } else if (SPC_TRY(std::move(done))) {
        // Noted before others can take the locks: a job that waits for the same image need not
        // bring it again.
        SPC_TRY(context_.rights.delivered(one->task->name()));
        context_.timing.from += one->task->came();
        context_.timing.converted += one->task->converts() ? 1 : 0;
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

  static constexpr std::size_t kMostWaiting = 4;

  PullContext context_;
  Progress progress_;
  std::list<ImageLayer> queue_;
  std::list<Underway> underway_;
  std::vector<std::optional<HeldLayer>> held_;
  std::map<std::size_t, Waited> waited_;  // by place
  std::size_t elsewhere_ = 0;             // layers that other processes convert
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

/// The layers below, then those of the run: `files` has all of them.
Result<void> write_merged(const PullContext& context, const Digest& name, std::uint32_t merges,
                          std::span<const int> files) {
  LayerLimits limits = context.limits;
  limits.merges = merges;
  const auto object = SPC_TRY(context.agent.new_object(order_of(limits)));
  LayerProcess writer(SPC_TRY(object->writer()));
  writer.close_input();
  (void)writer.give_below(files);  // if it has ended, its report or its status says why
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
    const auto lock =
        SPC_TRY(context.store.try_lock(name));  // keeps it from eviction until it is held
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
