#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/digest.hpp"
#include "base/process/child.hpp"
#include "base/result.hpp"
#include "image/relay/board.hpp"

namespace spc {

/// import's side of its relay: the bytes that come are written into a nameless file, which the
/// process `relay` sends to other nodes while it grows. The relay outlives `import`: it ends with
/// the agent, or a minute after the last request. It ends after 15 minutes in any case, as requests
/// with the step's key would keep the file on the disk.
class Spool {
 public:
  /// What a relay is started with.
  struct Start {
    UniqueFd listener;  ///< listens already
    UniqueFd file;      ///< empty, for reading and writing
    int agent = -1;     ///< pidfd, borrowed: the relay ends with it
    PeerKey key{};
    std::uint32_t fanout = 2;
    std::string program;  ///< empty: `relay` beside this program
  };
  static Result<Spool> start(Start with);

  Spool(Spool&&) = default;
  Spool& operator=(Spool&&) = delete;
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;
  ~Spool();

  using Slot = std::uint32_t;
  /// This blob will come. Empty: there is no room for it on the board. Once more: the same slot,
  /// unless it is gone.
  std::optional<Slot> add(const Digest& blob, std::uint64_t size);
  /// The next bytes of it. An error: the file system is full; whoever reads the blob goes on
  /// elsewhere.
  Result<void> write(Slot slot, std::uint64_t offset, std::span<const std::byte> bytes);
  /// What was written. 0: it cannot be read.
  [[nodiscard]] std::size_t read(Slot slot, std::uint64_t offset, std::span<std::byte> into) const;
  [[nodiscard]] int file() const { return file_.get(); }
  /// All of it is there, and right.
  void complete(Slot slot);
  /// It does not come, or was wrong.
  void drop(Slot slot);
  /// How far this node is, and what it has heard of those above: see RelayBoard.
  void tell(std::uint64_t here, std::uint64_t leader, std::uint64_t pace) {
    board_->here = here, board_->leader = leader, board_->pace = pace;
  }
  /// No other blobs will come.
  void close();

  /// Gives the disk back: all is gone.
  void give_up();
  /// Whether the process still runs.
  [[nodiscard]] bool is_alive() { return child_.running() && !child_.try_wait(); }

 private:
  Spool(SharedBoard board, UniqueFd file, UniqueFd wake, UniqueFd life, Child child);
  void wake();

  SharedBoard board_;
  UniqueFd file_, wake_, life_;
  Child child_;
  std::uint64_t end_ = 0;     // of what is taken of the file
  std::uint64_t unsaid_ = 0;  // bytes since the relay was told
};

}  // namespace spc
