#include "filesystem/piece_queue.hpp"

namespace spc {

void PieceRef::reset() noexcept {
  Piece* piece = std::exchange(piece_, nullptr);
  if (piece != nullptr && piece->readers.fetch_sub(1, std::memory_order_acq_rel) == 1)
    queue_->give_back(piece);
}

PieceQueue::PieceQueue() {
  for (Piece& piece : pieces_) {
    // Not make_unique, which would touch the memory.
    piece.bytes.reset(new std::byte[Piece::kCapacity]);
    empty_.push(&piece);
  }
}

Piece* PieceQueue::empty_piece() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return empty_.count > 0 || stopped_; });
  if (stopped_) return nullptr;
  Piece* piece = empty_.pop();
  piece->size = 0;
  return piece;
}

void PieceQueue::publish(Piece* piece) {
  const std::scoped_lock lock(mutex_);
  piece->readers.store(kReaders, std::memory_order_relaxed);
  for (Ring& ring : waiting_) ring.push(piece);
  changed_.notify_all();
}

void PieceQueue::finish(std::optional<Error> why) {
  const std::scoped_lock lock(mutex_);
  finished_ = true;
  error_ = std::move(why);
  changed_.notify_all();
}

Result<PieceRef> PieceQueue::next(Reader reader) {
  std::unique_lock lock(mutex_);
  Ring& ring = waiting_[reader];
  changed_.wait(lock, [&] { return ring.count > 0 || finished_ || stopped_; });
  if (stopped_) return PieceRef();
  if (ring.count > 0) return PieceRef(this, ring.pop());
  if (error_ && reader == kParser) return *error_;
  return PieceRef();
}

void PieceQueue::stop() {
  const std::scoped_lock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void PieceQueue::give_back(Piece* piece) noexcept {
  const std::scoped_lock lock(mutex_);
  empty_.push(piece);
  changed_.notify_all();
}

}  // namespace spc
