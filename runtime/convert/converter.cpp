// Conversion of one layer blob to an image, in a sandbox, and the extraction of an image's facts.

#include "convert/converter.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <iterator>
#include <limits>
#include <mutex>
#include <new>
#include <thread>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/process/sandbox.hpp"
#include "base/text.hpp"
#include "convert/facts.hpp"
#include "convert/fit.hpp"
#include "convert/layers_below.hpp"
#include "convert/tar_reader.hpp"
#include "filesystem/data_writer.hpp"
#include "filesystem/erofs_writer.hpp"
#include "protocol/layer.hpp"

namespace spc {

// --- sandbox ---

Result<void> enter_layer_sandbox(std::uint64_t largest_file, std::uint64_t memory,
                                 std::uint64_t cpu_seconds) {
  ::signal(SIGXFSZ, SIG_IGN);  // the write fails instead, with a reason
  ::signal(SIGPIPE, SIG_IGN);
  return enter_sandbox(
      {// inherited descriptors
       SCMP_SYS(read),
       SCMP_SYS(write),
       SCMP_SYS(pread64),
       SCMP_SYS(pwrite64),
       SCMP_SYS(pwritev),
       SCMP_SYS(ftruncate),
       SCMP_SYS(sync_file_range),
       SCMP_SYS(close),
       SCMP_SYS(lseek),
       // Receives the layers below over the inherited socket. Requests are sent by write, because
       // sendmsg could pass on the file.
       SCMP_SYS(recvmsg),
       // Memory and threads. With a shared mapping of the file, a read that outlives the mapping
       // could change it after it was verified.
       {SCMP_SYS(mmap),
        {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
         SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS)}},
       SCMP_SYS(futex),
       SCMP_SYS(sched_yield),
       SCMP_SYS(clock_gettime),
       SCMP_SYS(restart_syscall)},
      {.descriptors = kLayerInput + 1 + kMaxLayersBelow,
       .file_size = largest_file,
       .memory = memory,
       .cpu_seconds = cpu_seconds});
}

// --- layer facts ---

namespace {

constexpr std::size_t kReadAtOnce = 1 << 20;
constexpr int kDeepest = 200;
constexpr int kMostLinks = 40;
constexpr std::uint64_t kMostEntries = 4'000'000;

class LayeredFiles final : public SeenFiles {
 public:
  explicit LayeredFiles(below::LayersBelow& layers) : layers_(layers) {}

  Result<void> walk(const std::function<void(const std::string&, bool)>& visit) override {
    const auto root = SPC_TRY(layers_.root());
    return root ? walk(*root, "", 0, visit) : Result<void>();
  }

  std::string text(const std::string& path, std::size_t limit) override {
    const auto file = find(path);
    if (!file || !*file || !(*file)->is(S_IFREG)) return {};
    limit = static_cast<std::size_t>(std::min<std::uint64_t>(limit, (*file)->top().size));
    std::string text;
    while (text.size() < limit) {
      const auto pieces =
          layers_.read(**file, text.size(), std::min(limit - text.size(), kReadAtOnce));
      const std::size_t before = text.size();
      for (const fuse::Piece& piece : pieces ? *pieces : std::vector<fuse::Piece>()) {
        const char* const bytes =
            piece.block ? reinterpret_cast<const char*>(piece.block->bytes.get()) + piece.offset
                        : nullptr;
        bytes == nullptr ? text.append(piece.size, '\0') : text.append(bytes, piece.size);
      }
      if (text.size() == before) return {};
    }
    return text;
  }

 private:
  Result<void> walk(const below::Node& directory, const std::string& path, int depth,
                    const std::function<void(const std::string&, bool)>& visit) {
    if (depth > kDeepest)
      return Error(ErrorKind::corrupt, "the image's directories are nested too deeply");
    const auto listing = SPC_TRY(layers_.list(directory));
    for (const auto& [name, type] : listing.types()) {
      if (++entries_ > kMostEntries)
        return Error(ErrorKind::refused, "the image has too many files");
      const std::string here = path + std::string(name);
      visit(here, S_ISDIR(type));
      if (!S_ISDIR(type) || holds_no_facts(name)) continue;
      const auto found = SPC_TRY(listing.find(name));
      if (found) SPC_TRY(walk(*found, here + "/", depth + 1, visit));
    }
    return {};
  }

  Result<std::optional<below::Node>> find(const std::string& path) {
    const std::optional<below::Node> none;
    auto root = SPC_TRY(layers_.root());
    if (!root) return none;
    std::vector<below::Node> way{*std::move(root)};
    std::vector<std::string> rest;  // the next one is last
    const auto go = [&](std::string_view to) {
      const auto parts = split(to, '/');
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) rest.emplace_back(*part);
    };
    go(path);
    for (int links = 0; !rest.empty();) {
      const std::string name = std::move(rest.back());
      rest.pop_back();
      if (name.empty() || name == ".") continue;
      if (name == "..") {
        if (way.size() > 1) way.pop_back();
        continue;
      }
      if (!way.back().is(S_IFDIR)) return none;
      const auto listing = SPC_TRY(layers_.list(way.back()));
      auto found = SPC_TRY(listing.find(name));
      if (!found) return none;
      if (!found->is(S_IFLNK)) {
        way.push_back(*std::move(found));
        continue;
      }
      if (++links > kMostLinks) return none;
      const std::string target = SPC_TRY(layers_.target(*found));
      if (target.starts_with('/')) way.erase(way.begin() + 1, way.end());
      go(target);
    }
    return std::optional(std::move(way.back()));
  }

  below::LayersBelow& layers_;
  std::uint64_t entries_ = 0;
};

}  // namespace

Result<std::string> facts_of_layers(std::vector<UniqueFd> layers) {
  Budget budget;
  auto opened = SPC_TRY(below::LayersBelow::open(std::move(layers), budget));
  LayeredFiles files(opened);
  const FactSheet sheet = SPC_TRY(facts_of(files));
  return fact_records(sheet);
}

// --- converter ---

namespace {

/// Barrier at which threads wait until the sandbox is entered. A starting thread makes system calls
/// that the sandbox forbids, so the sandbox waits until all have arrived.
class Gate {
 public:
  enum class State { shut, open, cancelled };
  explicit Gate(unsigned threads) : expected_(threads) {}

  void wait_for_arrivals() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return expected_ == 0; });
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    --expected_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return state_ != State::shut; });
    return state_ == State::open;
  }
  void set(State state) {
    const std::scoped_lock lock(mutex_);
    if (state_ == State::shut) state_ = state;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned expected_;
  State state_ = State::shut;
};

}  // namespace

class LayerConverter::Work {
 public:
  Work(int input, int output, int below, std::uint64_t data_begin, unsigned workers,
       const LayerLimits& limits)
      : input_(input),
        output_(output),
        below_(below),
        limits_(limits),
        budget_(limits.tar_bytes),
        tree_(budget_, below >= 0),
        writer_(output, data_begin, workers, limits.compression, limits.format,
                limits.plain_first != 0),
        inflating_([this] { inflate(); }),
        hashing_([this] { hash(); }) {
    gate_.wait_for_arrivals();
  }

  ~Work() {
    gate_.set(Gate::State::cancelled);
    queue_.stop();
    inflating_.join();
    if (hashing_.joinable()) hashing_.join();
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  Result<ConvertedLayer> run() {
    gate_.set(Gate::State::open);
    if (limits_.merges > 0) {
      SPC_TRY(merge_layers());
    } else {
      SPC_TRY(read_archive());
      tree_.finish();
      if (below_ >= 0) SPC_TRY(fit_to_layers_below());
    }
    SPC_TRY(writer_.finish());
    SPC_TRY(write_tables());
    hashing_.join();
    const auto milliseconds = [](PieceQueue::Clock::duration time) {
      return static_cast<std::uint64_t>(time / std::chrono::milliseconds(1));
    };
    layer_.link_ms = milliseconds(queue_.for_blob());
    layer_.write_ms = milliseconds(queue_.for_readers());
    layer_.inflate_ms = milliseconds(inflating_took_ - queue_.for_blob() - queue_.for_readers());
    layer_.dropped_devices = tree_.dropped_devices();
    layer_.dropped_xattrs = tree_.dropped_xattrs();
    return layer_;
  }

 private:
  void inflate() {
    if (!gate_.wait()) return;
    const auto begin = PieceQueue::Clock::now();
    try {
      auto done = decompress(input_, queue_, limits_.tar_bytes);
      inflating_took_ = PieceQueue::Clock::now() - begin;
      queue_.finish(done ? std::nullopt : std::optional(std::move(done).error()));
    } catch (const std::bad_alloc&) {
      queue_.finish(Error(ErrorKind::no_space, "out of memory while decompressing"));
    }
  }

  void hash() {
    if (!gate_.wait()) return;
    for (;;) {
      const auto piece = queue_.next(PieceQueue::kHasher);
      if (!piece || !*piece) break;
      const auto bytes = piece->bytes();
      digest_.update(bytes);
      layer_.tar_bytes += bytes.size();
    }
    layer_.diff_id = digest_.finish();
  }

  Result<void> read_archive() {
    TarReader reader(queue_);
    TarEntry entry;
    std::string last;
    for (;;) {
      auto more = reader.next(entry);
      if (!more) {
        const std::string after =
            last.empty() ? "before the first entry" : "after entry " + in_quotes(last);
        return std::move(more).error().during(after);
      }
      if (!*more) break;
      if (++layer_.entries > limits_.entries) {
        return Error(ErrorKind::refused,
                     formatted("the layer has more than {} entries", limits_.entries))
            .hint("split the layer");
      }
      budget_.set_size(reader.position(), queue_.blob_bytes());
      SPC_TRY_DURING("entry " + in_quotes(entry.path), add(reader, entry));
      std::swap(last, entry.path);
    }
    return reader.drain();
  }

  Result<void> write_tables() {
    if (limits_.format == LayerFormat::erofs) {
      return write_erofs_tables(output_, writer_.offset(), limits_.compression, tree_.root());
    }
    const std::uint16_t owners = limits_.format == LayerFormat::owned_squashfs ? 2 : 1;
    return write_squashfs_tables(output_, writer_.offset(), limits_.compression, owners,
                                 tree_.root(), writer_.fragments());
  }

  Result<void> fit_to_layers_below() {
    if (!below::depends_on_layers_below(tree_.root())) return {};
    layer_.fitted = 1;
    auto files = SPC_TRY(ask_for_layers_below());
    auto layers = SPC_TRY(below::LayersBelow::open(std::move(files), budget_));
    return below::fit(tree_.root(), layers, writer_, budget_);
  }

  /// Drops whiteouts and opaque marks of the merged layers that hide no entry below them.
  Result<void> merge_layers() {
    auto files = SPC_TRY(ask_for_layers_below());
    if (files.size() < limits_.merges)
      return Error(ErrorKind::invalid, "there are not enough layers to merge");
    const auto bottom = files.end() - static_cast<std::ptrdiff_t>(limits_.merges);
    std::vector<UniqueFd> merged(std::make_move_iterator(bottom),
                                 std::make_move_iterator(files.end()));
    files.erase(bottom, files.end());
    std::uint64_t bytes = 0;
    for (const UniqueFd& file : merged)
      bytes += static_cast<std::uint64_t>(std::max<off_t>(::lseek(file.get(), 0, SEEK_END), 0));
    // `bytes` is the size of the blob. The size of the archive is not known.
    budget_.set_size(std::numeric_limits<std::uint64_t>::max() / 2, bytes);
    auto run = SPC_TRY(below::LayersBelow::open(std::move(merged), budget_));
    layer_.entries = SPC_TRY(below::merge(tree_.root(), run, writer_, limits_.entries, budget_));
    if (!below::depends_on_layers_below(tree_.root())) return {};
    auto layers = SPC_TRY(below::LayersBelow::open(std::move(files), budget_));
    return below::fit(tree_.root(), layers, writer_, budget_);
  }

  Result<std::vector<UniqueFd>> ask_for_layers_below() {
    const LayersBelowQuestion question{.entries = layer_.entries};
    SPC_TRY(write_all(below_, std::as_bytes(std::span(&question, 1))));
    return receive_layers(below_);
  }

  Result<void> add(TarReader& reader, TarEntry& entry) {
    const auto inode = SPC_TRY(tree_.add(entry));
    if (!inode) return {};
    SPC_TRY(budget_.fill(entry.size));
    SPC_TRY(writer_.begin(inode, entry.size, entry.sparse));
    if (entry.sparse) {
      std::uint64_t at = 0;
      for (const Extent& extent : entry.extents) {
        SPC_TRY(writer_.add_zeros(extent.offset - at));
        SPC_TRY(copy(reader, extent.size));
        at = extent.offset + extent.size;
      }
      SPC_TRY(writer_.add_zeros(entry.size - at));
    } else {
      SPC_TRY(copy(reader, entry.size));
    }
    return writer_.end();
  }

  Result<void> copy(TarReader& reader, std::uint64_t count) {
    while (count > 0) {
      const auto data = SPC_TRY(reader.read(count));
      SPC_TRY(writer_.add(data.bytes, *data.piece));
      count -= data.bytes.size();
    }
    return {};
  }

  int input_;
  int output_;
  int below_;
  LayerLimits limits_;
  // diff_id and tar_bytes belong to the hashing thread until it is joined
  ConvertedLayer layer_;
  Sha256 digest_;
  PieceQueue queue_;
  PieceQueue::Clock::duration inflating_took_{};  // set before queue_ ends
  Budget budget_;
  Tree tree_;
  DataWriter writer_;  // holds pieces of the queue
  Gate gate_{2};
  std::thread inflating_;
  std::thread hashing_;
};

LayerConverter::LayerConverter(std::unique_ptr<Work> work) : work_(std::move(work)) {}
LayerConverter::LayerConverter(LayerConverter&&) noexcept = default;
LayerConverter::~LayerConverter() = default;

Result<LayerConverter> LayerConverter::create(int input, int output, unsigned workers,
                                              const LayerLimits& limits, int below) {
  const bool is_erofs = limits.format == LayerFormat::erofs;
  if (is_erofs && limits.compression == LayerCompression::zstd)
    return Error(ErrorKind::invalid, "erofs layers have no zstd");
  const std::uint64_t data_begin =
      is_erofs ? kErofsDataBegin : SPC_TRY(begin_squashfs(output, limits.compression));
  return LayerConverter(std::make_unique<Work>(input, output, below, data_begin, workers, limits));
}

Result<ConvertedLayer> LayerConverter::run() { return work_->run(); }

}  // namespace spc
