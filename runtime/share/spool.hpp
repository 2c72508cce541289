#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/digest.hpp"
#include "base/process/child.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/tracker.hpp"

namespace spc {

// --- index ---

/// Descriptors with which `import` starts `relay`. 0-2 are /dev/null, the environment is empty.
inline constexpr int kRelayListener = 3;  ///< other nodes connect there
/// memory file with a SpoolIndex: `import` writes, `relay` reads
inline constexpr int kRelayIndex = 4;
inline constexpr int kRelaySpool = 5;   ///< nameless file with the blobs' bytes
inline constexpr int kRelayWake = 6;    ///< eventfd: the index has changed
inline constexpr int kRelayImport = 7;  ///< pipe: its other end closes with `import`
inline constexpr int kRelayAgent = 8;   ///< pidfd of the agent, which ends with the step

enum class BlobState : std::uint32_t {
  comes,     ///< bytes are still arriving
  complete,  ///< all bytes are there, and the digest was verified
  gone,      ///< not available from this node
};

/// Offers of this node to other nodes. Entries are only added. A fact that a reader has seen stays
/// true: `have` only grows, and a state other than `comes` is final.
struct SpoolIndex {
  struct Entry {
    Digest blob;
    std::uint64_t size = 0;
    std::uint64_t offset = 0;  ///< in the spool
    std::atomic<std::uint64_t> have = 0;
    std::atomic<BlobState> state = BlobState::comes;
  };
  static constexpr std::uint32_t kMostBlobs = 1024;

  PeerKey key{};
  std::uint32_t fanout = 0;
  std::atomic<std::uint32_t> count = 0;  ///< number of entries that readers may use
  /// no entry will be added: blobs without an entry are not available
  std::atomic<std::uint32_t> is_closed = 0;
  // Numbers by which nodes below detect a slow source (share/peer_order.hpp). here: bytes of the
  // image on this node, including those that it had before. leader: the same for the node that asks
  // the registry, 0 if that is this node. rate: bytes per second from an upper node.
  std::atomic<std::uint64_t> here = 0, leader = 0, rate = 0;
  std::array<Entry, kMostBlobs> entries{};

  /// Returns null if the index has no entry for the blob.
  [[nodiscard]] const Entry* find(const Digest& blob) const {
    const std::uint32_t known = count.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < known && i < kMostBlobs; ++i) {
      if (entries[i].blob == blob) return &entries[i];
    }
    return nullptr;
  }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// An index in memory that two processes share.
class SharedSpoolIndex {
 public:
  /// Creates an index. Other processes can map it only for reading.
  static Result<SharedSpoolIndex> create();
  /// Maps another process's index for reading.
  static Result<SharedSpoolIndex> open(int file);
  SharedSpoolIndex(SharedSpoolIndex&& other) noexcept;
  SharedSpoolIndex& operator=(SharedSpoolIndex&&) = delete;
  SharedSpoolIndex(const SharedSpoolIndex&) = delete;
  SharedSpoolIndex& operator=(const SharedSpoolIndex&) = delete;
  ~SharedSpoolIndex();

  [[nodiscard]] int file() const { return file_.get(); }
  SpoolIndex& operator*() const { return *index_; }
  SpoolIndex* operator->() const { return index_; }

 private:
  explicit SharedSpoolIndex(SpoolIndex* index, UniqueFd file = {})
      : index_(index), file_(std::move(file)) {}
  SpoolIndex* index_;
  UniqueFd file_;
};

// --- spool ---

/// Starts `relay` for an `import` whose sandbox forbids starting programs. The starter is a child
/// forked before the sandbox. It executes only this program, with the descriptors that it receives,
/// and holds no other state.
class RelayStarter {
 public:
  /// Forks the child. Call before there are threads, or secrets in memory. The child ends with this
  /// process and with this object. `program`: empty for `relay` beside this program.
  static Result<RelayStarter> create(const std::string& program = {});

  /// Starts a relay with these descriptors, numbered from kRelayListener on in their order. Returns
  /// its pidfd. The relay outlives this process.
  [[nodiscard]] Result<UniqueFd> start(std::span<const int> descriptors) const;

 private:
  RelayStarter(UniqueFd socket, Child child)
      : socket_(std::move(socket)), child_(std::move(child)) {}

  UniqueFd socket_;
  Child child_;
};

/// The spool of `import`: incoming bytes are written into a nameless file, which `relay` sends to
/// other nodes while it grows. The relay outlives `import`: it ends with the agent, or a minute
/// after the last request. It ends after 15 minutes in any case, because otherwise anybody with the
/// step's key could keep the file on the disk by requests.
class Spool {
 public:
  /// Parameters of a relay.
  struct Start {
    UniqueFd listener;  ///< already listening
    UniqueFd file;      ///< empty, for reading and writing
    int agent = -1;     ///< pidfd, borrowed: the relay ends with it
    PeerKey key{};
    std::uint32_t fanout = 2;
    const RelayStarter* starter = nullptr;  ///< borrowed
  };
  static Result<Spool> start(Start with);

  Spool(Spool&&) = default;
  Spool& operator=(Spool&&) = delete;
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;
  ~Spool() = default;

  using Slot = std::uint32_t;
  /// Announces a blob. Returns an empty optional if the index is full. For an announced blob,
  /// returns the same slot, unless it is gone.
  std::optional<Slot> add(const Digest& blob, std::uint64_t size);
  /// Appends the next bytes of the blob. Error: the file system is full, and readers of the blob
  /// switch to another source.
  Result<void> write(Slot slot, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Returns the number of bytes read, 0 on failure.
  [[nodiscard]] std::size_t read(Slot slot, std::uint64_t offset, std::span<std::byte> into) const;
  [[nodiscard]] int file() const { return file_.get(); }
  /// Marks the blob as complete and verified.
  void complete(Slot slot);
  /// Marks the blob as not available: it will not arrive, or was wrong.
  void drop(Slot slot);
  /// Publishes the progress of this node and of those above: see SpoolIndex.
  void tell(std::uint64_t here, std::uint64_t leader, std::uint64_t rate) {
    index_->here = here, index_->leader = leader, index_->rate = rate;
  }
  /// Declares that no other blobs will be added.
  void close();

  /// Marks all blobs as gone and frees the disk space.
  void give_up();
  /// Returns whether the relay still runs.
  [[nodiscard]] bool is_alive() const;

 private:
  Spool(SharedSpoolIndex index, UniqueFd file, UniqueFd wake, UniqueFd life, UniqueFd relay);
  void wake();

  SharedSpoolIndex index_;
  UniqueFd file_, wake_, life_, relay_;  // the last one is the pidfd
  std::uint64_t end_ = 0;                // of the used part of the file
  std::uint64_t unsaid_ = 0;             // bytes written since the relay was last woken
};

// --- best rate ---

/// The best rate among several receivers, each measured over at least half a second, so that bytes
/// already in a buffer do not count. Used by relay and by benchmarks/peers.
class BestRate {
 public:
  void add(std::uint32_t who, double seconds, double bytes) {
    const auto [found, is_new] = open_.try_emplace(who, Window{seconds, 0});
    if (is_new) return;  // the duration of the first bytes is not known
    Window& window = found->second;
    window.bytes += bytes;
    if (seconds - window.since < kWindow) return;
    best_ = std::max(best_, window.bytes / (seconds - window.since));
    window = {seconds, 0};
  }
  void forget(std::uint32_t who) { open_.erase(who); }
  [[nodiscard]] double best() const { return best_; }  ///< bytes per second, 0: not known

 private:
  static constexpr double kWindow = 0.5;
  struct Window {
    double since, bytes;
  };
  std::map<std::uint32_t, Window> open_;
  double best_ = 0;
};

}  // namespace spc
