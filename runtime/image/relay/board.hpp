#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/meeting.hpp"

namespace spc {

/// What `import` starts `relay` with; 0-2 are /dev/null, the environment is empty.
inline constexpr int kRelayListener = 3;  ///< other nodes connect there
inline constexpr int kRelayBoard =
    4;  ///< memory file, a RelayBoard: `import` writes, `relay` reads
inline constexpr int kRelaySpool = 5;   ///< the bytes, in a file that has no name
inline constexpr int kRelayWake = 6;    ///< eventfd: the board has changed
inline constexpr int kRelayImport = 7;  ///< pipe: its other end closes with `import`
inline constexpr int kRelayAgent = 8;   ///< pidfd of the agent, which ends with the step

enum class BlobState : std::uint32_t {
  comes,     ///< more of it will come
  complete,  ///< all of it is there, and has the digest
  gone,      ///< it is not, or no longer, to be had here
};

/// What this node has, or will have, for other nodes. Entries are only added, and what a reader has
/// seen of one stays true: `have` only grows, and a state that is not `comes` is the last.
struct RelayBoard {
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
  std::atomic<std::uint32_t> count = 0;  ///< of entries that are written
  std::atomic<std::uint32_t> is_closed =
      0;  ///< no others will come: what is not here is not to be had
  // What nodes below are told, to see whether a source is slow (peers/source_pace.hpp): bytes of
  // the image that are on this node, also those that it had already; that the node has which asks
  // the registry, 0: this one does; bytes a second that a node above gives.
  std::atomic<std::uint64_t> here = 0, leader = 0, pace = 0;
  std::array<Entry, kMostBlobs> entries{};

  /// Null: it is not here.
  [[nodiscard]] const Entry* find(const Digest& blob) const {
    const std::uint32_t known = count.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < known && i < kMostBlobs; ++i) {
      if (entries[i].blob == blob) return &entries[i];
    }
    return nullptr;
  }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// A board in memory that two processes share.
class SharedBoard {
 public:
  /// Whoever else maps it can only read.
  static Result<SharedBoard> create();
  /// Of another process.
  static Result<SharedBoard> open(int file);
  SharedBoard(SharedBoard&& other) noexcept;
  SharedBoard& operator=(SharedBoard&&) = delete;
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  ~SharedBoard();

  [[nodiscard]] int file() const { return file_.get(); }
  RelayBoard& operator*() const { return *board_; }
  RelayBoard* operator->() const { return board_; }

 private:
  explicit SharedBoard(RelayBoard* board, UniqueFd file = {})
      : board_(board), file_(std::move(file)) {}
  RelayBoard* board_;
  UniqueFd file_;
};

}  // namespace spc
