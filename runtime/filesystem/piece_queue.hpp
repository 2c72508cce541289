#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "base/result.hpp"

namespace spc {

class PieceQueue;

/// A part of the uncompressed layer. All pieces but the last are full, so that a 512-byte tar block
/// never crosses two pieces.
struct Piece {
  static constexpr std::size_t kCapacity = std::size_t{1} << 20;
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;
  std::atomic<unsigned> readers = 0;
};

/// Keeps a piece's bytes valid. Copies share the piece, which is reused after the last reference is
/// released.
class PieceRef {
 public:
  PieceRef() noexcept = default;
  PieceRef(PieceQueue* queue, Piece* piece) noexcept
      : queue_(queue), piece_(piece) {}  // takes over one reader
  PieceRef(const PieceRef& other) noexcept : queue_(other.queue_), piece_(other.piece_) {
    if (piece_ != nullptr) piece_->readers.fetch_add(1, std::memory_order_relaxed);
  }
  PieceRef(PieceRef&& other) noexcept
      : queue_(other.queue_), piece_(std::exchange(other.piece_, nullptr)) {}
  PieceRef& operator=(PieceRef other) noexcept {
    std::swap(queue_, other.queue_);
    std::swap(piece_, other.piece_);
    return *this;
  }
  ~PieceRef() { reset(); }
  void reset() noexcept;

  explicit operator bool() const noexcept { return piece_ != nullptr; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {piece_->bytes.get(), piece_->size};
  }

 private:
  PieceQueue* queue_ = nullptr;
  Piece* piece_ = nullptr;
};

/// Passes the uncompressed layer from the inflating thread to the two reading threads, without
/// copying. It owns a fixed number of pieces, which bounds the memory: the inflating thread waits
/// for a free piece.
class PieceQueue {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kPieces = 8;
  enum Reader : std::size_t { kParser, kHasher, kReaders };

  PieceQueue();

  // Functions of the inflating thread:
  /// Returns an empty piece, or null if there are no readers any more.
  Piece* empty_piece();
  void publish(Piece* piece);
  /// Counts bytes read from the blob.
  void received(std::size_t bytes) { blob_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  /// Adds to the time in which the inflating thread waits for bytes of the blob.
  void waited_for_blob(Clock::duration time) { for_blob_ += time; }
  /// Ends the stream: successfully, or with the Error in `why`.
  void finish(std::optional<Error> why);

  /// Return the time in which the inflating thread waited, once the stream has ended.
  [[nodiscard]] Clock::duration for_blob() const { return for_blob_; }
  [[nodiscard]] Clock::duration for_readers() const { return for_readers_; }

  // Functions of the reading threads:
  /// Returns the next piece, or an empty reference at the end of the stream.
  Result<PieceRef> next(Reader reader);
  /// Returns the bytes of the blob read by the inflating thread, which is ahead of the readers.
  [[nodiscard]] std::uint64_t blob_bytes() const {
    return blob_bytes_.load(std::memory_order_relaxed);
  }
  /// Stops reading, which ends the inflating thread.
  void stop();

 private:
  friend class PieceRef;
  void give_back(Piece* piece) noexcept;

  struct Ring {
    std::array<Piece*, kPieces> pieces{};
    std::size_t first = 0;
    std::size_t count = 0;
    void push(Piece* piece) { pieces[(first + count++) % kPieces] = piece; }
    Piece* pop() {
      Piece* piece = pieces[first];
      first = (first + 1) % kPieces;
      --count;
      return piece;
    }
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Piece, kPieces> pieces_;
  Ring empty_;
  std::array<Ring, kReaders> waiting_;
  bool finished_ = false;
  bool stopped_ = false;
  std::optional<Error> error_;
  std::atomic<std::uint64_t> blob_bytes_ = 0;
  Clock::duration for_blob_{}, for_readers_{};
};

inline void PieceRef::reset() noexcept {
  Piece* piece = std::exchange(piece_, nullptr);
  if (piece != nullptr && piece->readers.fetch_sub(1, std::memory_order_acq_rel) == 1)
    queue_->give_back(piece);
}

inline PieceQueue::PieceQueue() {
  for (Piece& piece : pieces_) {
    // Not make_unique, which would touch the memory.
    piece.bytes.reset(new std::byte[Piece::kCapacity]);
    empty_.push(&piece);
  }
}

inline Piece* PieceQueue::empty_piece() {
  std::unique_lock lock(mutex_);
  const auto is_ready = [&] { return empty_.count > 0 || stopped_; };
  if (!is_ready()) {
    const auto begin = Clock::now();
    changed_.wait(lock, is_ready);
    for_readers_ += Clock::now() - begin;
  }
  if (stopped_) return nullptr;
  Piece* piece = empty_.pop();
  piece->size = 0;
  return piece;
}

inline void PieceQueue::publish(Piece* piece) {
  const std::scoped_lock lock(mutex_);
  piece->readers.store(kReaders, std::memory_order_relaxed);
  for (Ring& ring : waiting_) ring.push(piece);
  changed_.notify_all();
}

inline void PieceQueue::finish(std::optional<Error> why) {
  const std::scoped_lock lock(mutex_);
  finished_ = true;
  error_ = std::move(why);
  changed_.notify_all();
}

inline Result<PieceRef> PieceQueue::next(Reader reader) {
  std::unique_lock lock(mutex_);
  Ring& ring = waiting_[reader];
  changed_.wait(lock, [&] { return ring.count > 0 || finished_ || stopped_; });
  if (stopped_) return PieceRef();
  if (ring.count > 0) return PieceRef(this, ring.pop());
  if (error_ && reader == kParser) return *error_;
  return PieceRef();
}

inline void PieceQueue::stop() {
  const std::scoped_lock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

inline void PieceQueue::give_back(Piece* piece) noexcept {
  const std::scoped_lock lock(mutex_);
  empty_.push(piece);
  changed_.notify_all();
}

}  // namespace spc
