// Decompression of layers, and of users' archives.

#include <isa-l/igzip_lib.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/format.hpp"
#include "base/text.hpp"
#include "convert/tar_reader.hpp"

namespace spc {

namespace {

Error truncated() { return Error(ErrorKind::corrupt, "the compressed data is truncated"); }

/// Buffered input of the blob.
class Source {
 public:
  Source(int fd, PieceQueue& queue)
      : fd_(fd), queue_(queue), buffer_(new std::uint8_t[kCapacity]) {}

  [[nodiscard]] std::uint8_t* data() { return buffer_.get() + begin_; }
  [[nodiscard]] std::size_t size() const { return end_ - begin_; }
  [[nodiscard]] bool at_end() const { return ended_ && begin_ == end_; }
  [[nodiscard]] bool ended() const { return ended_; }
  void consume(std::size_t count) { begin_ += count; }

  /// Buffers `count` bytes, or fewer at the end of the blob.
  Result<void> want(std::size_t count) {
    if (size() >= count || ended_) return {};
    std::memmove(buffer_.get(), data(), size());
    end_ -= begin_;
    begin_ = 0;
    while (size() < count && !ended_) {
      end_ += SPC_TRY(
          read_into(std::as_writable_bytes(std::span(buffer_.get() + end_, kCapacity - end_))));
    }
    return {};
  }

  /// Reads once from the descriptor, bypassing the buffer.
  Result<std::size_t> read_into(std::span<std::byte> room) {
    for (;;) {
      const auto begin = PieceQueue::Clock::now();
      const ssize_t got = ::read(fd_, room.data(), room.size());
      queue_.waited_for_blob(PieceQueue::Clock::now() - begin);
      if (got >= 0) {
        ended_ = got == 0;
        queue_.received(static_cast<std::size_t>(got));
        return static_cast<std::size_t>(got);
      }
      if (errno != EINTR) return Error::from_errno(errno, "read the blob");
    }
  }

 private:
  static constexpr std::size_t kCapacity = std::size_t{128} << 10;
  int fd_;
  PieceQueue& queue_;
  std::unique_ptr<std::uint8_t[]> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool ended_ = false;
};

/// Fills pieces and publishes the full ones.
class Sink {
 public:
  Sink(PieceQueue& queue, std::uint64_t limit) : queue_(queue), limit_(limit) {}

  Result<std::span<std::byte>> room() {
    if (piece_ == nullptr) piece_ = queue_.empty_piece();
    if (piece_ == nullptr) return Error(ErrorKind::internal, "the reader stopped");
    return std::span(piece_->bytes.get() + piece_->size, Piece::kCapacity - piece_->size);
  }

  Result<void> filled(std::size_t count) {
    total_ += count;
    if (total_ > limit_) {
      return Error(ErrorKind::refused, formatted("the layer unpacks to more than {} bytes", limit_))
          .hint("split the layer");
    }
    piece_->size += count;
    if (piece_->size == Piece::kCapacity) flush();
    return {};
  }

  void flush() {
    if (piece_ != nullptr && piece_->size > 0) queue_.publish(std::exchange(piece_, nullptr));
  }

 private:
  PieceQueue& queue_;
  std::uint64_t limit_;
  std::uint64_t total_ = 0;
  Piece* piece_ = nullptr;
};

Result<void> only_zeros(Source& in) {
  for (;;) {
    if (std::any_of(in.data(), in.data() + in.size(),
                    [](std::uint8_t byte) { return byte != 0; })) {
      return Error(ErrorKind::corrupt, "trailing data after the compressed data");
    }
    in.consume(in.size());
    SPC_TRY(in.want(1));
    if (in.at_end()) return {};
  }
}

bool is_gzip(Source& in) { return in.size() >= 2 && in.data()[0] == 0x1f && in.data()[1] == 0x8b; }

bool is_zstd(Source& in) {
  if (in.size() < 4) return false;
  const auto magic = number_at(std::span(in.data(), in.size()), 0);
  return magic == ZSTD_MAGICNUMBER ||
         (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START;
}

Result<void> gunzip_member(Source& in, Sink& out, inflate_state& state) {
  isal_inflate_reset(&state);
  state.crc_flag = ISAL_GZIP;  // parses the header, checks CRC and length
  for (;;) {
    SPC_TRY(in.want(1));
    const auto room = SPC_TRY(out.room());
    state.next_in = in.data();
    state.avail_in = static_cast<std::uint32_t>(in.size());
    state.next_out = reinterpret_cast<std::uint8_t*>(room.data());
    state.avail_out = static_cast<std::uint32_t>(room.size());
    const int rc = isal_inflate(&state);
    const std::size_t used = in.size() - state.avail_in;
    const std::size_t made = room.size() - state.avail_out;
    in.consume(used);
    SPC_TRY(out.filled(made));
    if (rc == ISAL_INCORRECT_CHECKSUM)
      return Error(ErrorKind::corrupt, "gzip: wrong checksum or length");
    if (rc < 0 || rc == ISAL_NEED_DICT)
      return Error(ErrorKind::corrupt, "gzip: the compressed data is damaged");
    if (state.block_state == ISAL_BLOCK_FINISH) return {};
    if (in.ended() && used == 0 && made == 0) return truncated();
  }
}

Result<void> gunzip(Source& in, Sink& out) {
  const auto state = std::make_unique<inflate_state>();
  isal_inflate_init(state.get());
  do {
    SPC_TRY(gunzip_member(in, out, *state));
    SPC_TRY(in.want(2));
  } while (is_gzip(in));
  return only_zeros(in);
}

Result<void> unzstd(Source& in, Sink& out) {
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  // The window is limited to 128 MiB (ZSTD_d_windowLogMax's default).
  const std::unique_ptr<ZSTD_DCtx, Free> context(ZSTD_createDCtx());
  if (!context) return Error::from_errno(ENOMEM, "zstd");
  std::size_t rest = 0;
  while (!(rest == 0 && !is_zstd(in))) {
    const auto room = SPC_TRY(out.room());
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer to{room.data(), room.size(), 0};
    rest = ZSTD_decompressStream(context.get(), &to, &from);
    if (ZSTD_isError(rest) != 0) {
      return Error(ErrorKind::corrupt, std::string("zstd: ") + ZSTD_getErrorName(rest));
    }
    in.consume(from.pos);
    SPC_TRY(out.filled(to.pos));
    SPC_TRY(in.want(rest == 0 ? 4 : 1));
    if (in.at_end() && rest != 0 && to.pos == 0) return truncated();
  }
  return only_zeros(in);
}

Result<void> copy_plain(Source& in, Sink& out) {
  while (!in.at_end()) {
    const auto room = SPC_TRY(out.room());
    std::size_t count = std::min(room.size(), in.size());
    if (count > 0) {
      std::memcpy(room.data(), in.data(), count);
      in.consume(count);
    } else {
      count = SPC_TRY(in.read_into(room));
    }
    SPC_TRY(out.filled(count));
  }
  return {};
}

}  // namespace

Result<void> decompress(int input, PieceQueue& queue, std::uint64_t limit) {
  Source in(input, queue);
  Sink out(queue, limit);
  SPC_TRY(in.want(4));
  if (in.at_end()) return Error(ErrorKind::corrupt, "the blob is empty");
  SPC_TRY(is_gzip(in) ? gunzip(in, out) : is_zstd(in) ? unzstd(in, out) : copy_plain(in, out));
  out.flush();
  return {};
}

}  // namespace spc
