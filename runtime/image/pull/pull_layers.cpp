#include "image/pull/pull_layers.hpp"

#include <algorithm>
#include <list>
#include <map>

#include "base/format.hpp"
#include "image/pull/layer_proof.hpp"

namespace spc {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t megabytes(std::uint64_t bytes) { return (bytes + 500'000) / 1'000'000; }

class Progress {
 public:
  Progress(const PullContext& context, const std::vector<MissingLayer>& missing)
      : context_(context), there_(context.layers - missing.size()) {
    for (const auto& layer : missing) total_ += layer.blob.size;
  }
  void layer_done(const MissingLayer& layer) {
    ++there_;
    finished_ += layer.blob.size;
  }
  void complete() {
    if (context_.meter && total_ > 0) context_.agent.meter(total_, total_);
  }
  /// `underway` bytes have come of layers that are not finished; others convert `elsewhere` layers.
  void tell(std::uint64_t underway, std::size_t elsewhere) {
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

struct Underway {
  MissingLayer layer;
  std::unique_ptr<LayerTask> task;
};

/// The phase that the next piece of time belongs to.
ImportTiming::Seconds& phase_of(const std::list<Underway>& underway, ImportTiming& timing) {
  const auto any = [&](LayerPhase phase) {
    return std::any_of(underway.begin(), underway.end(), [&](const Underway& one) { return one.task->phase() == phase; });
  };
  if (underway.empty()) return timing.others;
  if (any(LayerPhase::fetching)) return timing.fetch;
  return any(LayerPhase::converting) ? timing.convert : timing.publish;
}

/// Whoever brings a layer at less than 8 MB/s is not waited for to the end: he may have been stopped, or have a registry
/// of his own that is slow on purpose.
std::chrono::seconds patience_for(const MissingLayer& layer) { return std::chrono::seconds(30 + layer.blob.size / 8'000'000); }

}  // namespace

Result<std::vector<UniqueFd>> pull_layers(PullContext context, std::vector<MissingLayer> missing) {
  std::stable_sort(missing.begin(), missing.end(), [](const auto& a, const auto& b) { return a.blob.size > b.blob.size; });
  Progress progress(context, missing);
  std::list<MissingLayer> queue(missing.begin(), missing.end());
  std::list<Underway> underway;
  std::vector<UniqueFd> held;
  std::map<Digest, Clock::time_point> waited_since;
  const auto finish = [&](const MissingLayer& layer) {
    progress.layer_done(layer);
    held.push_back(context.store.hold_layer(layer_name(layer.blob.digest)));
  };

  // Starts layers as far as there is room. Nobody waits for a lock while he holds one for a layer that he has not
  // begun, so processes that want the same layers cannot block each other.
  std::size_t elsewhere = 0;
  const auto start_some = [&]() -> Result<void> {
    elsewhere = 0;
    for (auto layer = queue.begin(); layer != queue.end() && underway.size() < context.max_parallel;) {
      const Digest name = layer_name(layer->blob.digest);
      auto lock = SPC_TRY(context.store.try_lock(name));
      // Looked at under the lock: whoever had it before has delivered the layer or failed.
      const bool there = context.store.has_layer(name);
      if (there && SPC_TRY(context.rights.may_take(name))) {
        finish(*layer);
      } else if (!lock && Clock::now() - waited_since.emplace(name, Clock::now()).first->second < patience_for(*layer)) {
        ++elsewhere;
        ++layer;
        continue;
      } else if (there) {
        underway.push_back({*layer, LayerProof::start(*layer, std::move(lock), context.source)});
      } else {
        auto pull = SPC_TRY(LayerPull::start(*layer, std::move(lock), context.source, context.agent));
        underway.push_back({*layer, std::move(pull)});
      }
      layer = queue.erase(layer);
    }
    return {};
  };

  for (const auto& layer : missing) context.timing.bytes += layer.blob.size;
  context.timing.layers = missing.size();
  for (;;) {
    SPC_TRY(start_some());
    if (queue.empty() && underway.empty()) {
      progress.complete();
      return held;
    }
    const TimedPhase phase(phase_of(underway, context.timing));
    std::uint64_t received = 0;
    std::vector<pollfd> watched{context.agent.watch()};
    for (const auto& one : underway) {
      received += one.task->received();
      one.task->watch(watched);
    }
    progress.tell(received, elsewhere);
    // The time-out serves locks of others and tries that are due; everything else wakes us itself.
    SPC_TRY(context.http.wait(std::chrono::milliseconds(100), watched));
    SPC_TRY(context.agent.receive());
    for (auto one = underway.begin(); one != underway.end();) {
      if (SPC_TRY(one->task->advance())) {
        // Noted before others can take the lock: a job that waits for the same image need not bring it again.
        SPC_TRY(context.rights.delivered(layer_name(one->layer.blob.digest)));
        finish(one->layer);
        one = underway.erase(one);
      } else {
        ++one;
      }
    }
  }
}

}  // namespace spc
