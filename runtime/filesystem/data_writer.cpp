#include "filesystem/data_writer.hpp"

#include <fcntl.h>
#include <lz4.h>
#include <sys/uio.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>

#include "filesystem/erofs_writer.hpp"

namespace spc {

namespace {

constexpr std::size_t kPageBytes = erofs::kBlock;
/// Bytes after which writeback to disk is started.
constexpr std::uint64_t kWriteBackBytes = std::uint64_t{8} << 20;
/// The disk is slow if waiting for all but the last bytes takes this time, and this part of all
/// time.
constexpr std::uint64_t kAheadOfDisk = std::uint64_t{64} << 20;
constexpr std::chrono::milliseconds kDiskIsSlow{100};
constexpr int kSlowPart = 4;

bool all_zero(std::span<const std::byte> bytes) {
  const auto head = bytes.first(std::min<std::size_t>(bytes.size(), 64));
  for (const auto byte : head) {
    if (byte != std::byte{0}) return false;
  }
  return bytes.size() == head.size() ||
         std::memcmp(bytes.data(), bytes.data() + head.size(), bytes.size() - head.size()) == 0;
}

Result<void> write_vector(int fd, std::span<iovec> parts, std::uint64_t offset) {
  while (!parts.empty()) {
    const ssize_t count =
        ::pwritev(fd, parts.data(), static_cast<int>(parts.size()), static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "write the layer's image");
    }
    offset += static_cast<std::uint64_t>(count);
    auto left = static_cast<std::size_t>(count);
    while (!parts.empty() && left >= parts[0].iov_len) {
      left -= parts[0].iov_len;
      parts = parts.subspan(1);
    }
    if (left > 0) {
      parts[0].iov_base = static_cast<std::byte*>(parts[0].iov_base) + left;
      parts[0].iov_len -= left;
    }
  }
  return {};
}

}  // namespace

/// Compressor of one thread. zstd: level 1.
class DataWriter::Compressor {
 public:
  Compressor(LayerCompression compression, LayerFormat format)
      : compression_(compression), format_(format) {
    if (compression == LayerCompression::lz4) {
      state_ = std::make_unique<std::byte[]>(static_cast<std::size_t>(LZ4_sizeofState()));
      return;
    }
    context_ = ZSTD_createCCtx();
    if (context_ == nullptr) throw std::bad_alloc();
    ZSTD_CCtx_setParameter(context_, ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(context_, ZSTD_c_windowLog, 17);  // the size of a block
  }
  ~Compressor() { ZSTD_freeCCtx(context_); }
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  /// Returns the compressed size, or 0 if it is not smaller: for erofs, by at least a page.
  std::size_t compress(std::span<const std::byte> input, std::byte* output) {
    if (compression_ == LayerCompression::lz4) {
      const int bytes = static_cast<int>(input.size());
      const int room = format_ == LayerFormat::erofs ? (bytes - 1) / static_cast<int>(kPageBytes) *
                                                           static_cast<int>(kPageBytes)
                                                     : bytes - 1;
      return static_cast<std::size_t>(
          LZ4_compress_fast_extState(state_.get(), reinterpret_cast<const char*>(input.data()),
                                     reinterpret_cast<char*>(output), bytes, room, 1));
    }
    const std::size_t size =
        ZSTD_compress2(context_, output, input.size() - 1, input.data(), input.size());
    return ZSTD_isError(size) != 0 ? 0 : size;
  }

 private:
  LayerCompression compression_;
  LayerFormat format_;
  ZSTD_CCtx* context_ = nullptr;
  std::unique_ptr<std::byte[]> state_;  // state of lz4
};

DataWriter::DataWriter(int output, std::uint64_t offset, unsigned workers,
                       LayerCompression compression, LayerFormat format, bool plain_first)
    : output_(output),
      compression_(compression),
      format_(format),
      plain_(plain_first || compression == LayerCompression::none),
      data_begin_(offset),
      offset_(offset),
      written_back_(offset),
      partial_(new std::byte[kBlockBytes]),
      fragment_(new std::byte[kBlockBytes]),
      ready_(compression == LayerCompression::none ? 0 : workers) {
  if (compression == LayerCompression::none) return;
  if (workers == 0) inline_compressor_ = std::make_unique<Compressor>(compression, format);
  for (unsigned i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  ready_.wait();
}

DataWriter::~DataWriter() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    work_there_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void DataWriter::compress(Slot& slot, Compressor& compressor) {
  if (!slot.output) slot.output.reset(new std::byte[kBlockBytes]);
  const std::size_t size = slot.as_is ? 0 : compressor.compress(slot.input, slot.output.get());
  slot.compressed = size > 0;
  if (slot.compressed) {
    slot.result = {slot.output.get(), size};
  } else if (slot.piece) {
    // Copy the block: while it waits to be written, it must not keep a piece, because the parser
    // could wait for that piece forever.
    std::memcpy(slot.output.get(), slot.input.data(), slot.input.size());
    slot.result = {slot.output.get(), slot.input.size()};
  } else {
    slot.result = slot.input;
  }
  slot.piece.reset();
}

void DataWriter::work() {
  Compressor compressor(compression_, format_);
  ready_.count_down();
  std::unique_lock lock(mutex_);
  for (;;) {
    work_there_.wait(lock, [&] { return taken_ < submitted_ || stopped_; });
    if (stopped_) return;
    Slot& slot = slots_[taken_++ % kSlots];
    lock.unlock();
    compress(slot, compressor);
    lock.lock();
    slot.done = true;
    if (waiting_) work_done_.notify_one();
  }
}

Result<void> DataWriter::submit(std::span<const std::byte> bytes, Buffer* own,
                                const PieceRef* piece, std::shared_ptr<FileData> file,
                                std::size_t index) {
  if (submitted_ - written_ == kSlots) SPC_TRY(write_done(1));
  // Blocks that are stored as they are keep their piece until they are written. Keep one piece
  // only, because the parser could wait for the others forever.
  if (plain_ && piece != nullptr && piece->bytes().data() != kept_piece_) {
    if (submitted_ > written_) SPC_TRY(write_done(submitted_ - written_));
    kept_piece_ = piece->bytes().data();
  }
  Slot& slot = slots_[submitted_ % kSlots];
  if (own != nullptr) std::swap(slot.own, *own);
  if (own != nullptr && !*own) own->reset(new std::byte[kBlockBytes]);
  if (piece != nullptr) slot.piece = *piece;
  slot.input = bytes;
  slot.as_is = is_erofs() && (!file || as_is_);
  if (!file) slot.inodes.swap(packed_);
  slot.file = std::move(file);
  slot.index = index;
  slot.done = false;
  if (plain_ || inline_compressor_) {
    slot.compressed = false;
    slot.result = bytes;
    if (!plain_) compress(slot, *inline_compressor_);
    slot.done = true;
    const std::scoped_lock lock(mutex_);
    ++submitted_;
    ++taken_;
    return {};
  }
  const std::scoped_lock lock(mutex_);
  ++submitted_;
  work_there_.notify_one();
  return {};
}

/// Waits for the first `at_least` blocks and writes them and all blocks ready after them.
Result<void> DataWriter::write_done(std::size_t at_least) {
  std::size_t ready = 0;
  {
    std::unique_lock lock(mutex_);
    const auto count_ready = [&] {
      while (written_ + ready < submitted_ && slots_[(written_ + ready) % kSlots].done) ++ready;
      return ready >= at_least;
    };
    waiting_ = true;
    work_done_.wait(lock, count_ready);
    waiting_ = false;
  }
  static const std::array<std::byte, kPageBytes> zeros{};
  std::array<iovec, 2 * kSlots> parts{};
  std::size_t count = 0;
  const std::uint64_t begin = offset_;
  for (std::size_t i = 0; i < ready; ++i) {
    Slot& slot = slots_[(written_ + i) % kSlots];
    // erofs: compressed data is aligned to the end of its last page.
    const iovec padding{
        const_cast<std::byte*>(zeros.data()),
        is_erofs() ? (kPageBytes - slot.result.size() % kPageBytes) % kPageBytes : 0};
    const iovec content{const_cast<std::byte*>(slot.result.data()), slot.result.size()};
    parts[count++] = slot.compressed ? padding : content;
    parts[count++] = slot.compressed ? content : padding;
    place(slot);
  }
  SPC_TRY(write_vector(output_, std::span(parts).first(count), begin));
  for (std::size_t i = 0; i < ready; ++i) slots_[(written_ + i) % kSlots].piece.reset();
  written_ += ready;
  begin_write_back();
  return {};
}

/// Starts writeback. Otherwise the kernel would keep everything in memory until `import` syncs the
/// file, and the sync would then take the time of writing all of it. While blocks are stored as
/// they are only because the disk is fast, waits for the older ones, and compresses from then on if
/// the disk takes a good part of the time.
void DataWriter::begin_write_back() {
  if (offset_ - written_back_ < kWriteBackBytes) return;
  const auto begin = Clock::now();
  if (written_back_ == data_begin_) began_ = begin;
  // The sync reports errors.
  (void)::sync_file_range(output_, static_cast<off_t>(written_back_),
                          static_cast<off_t>(offset_ - written_back_), SYNC_FILE_RANGE_WRITE);
  written_back_ = offset_;
  if (!plain_ || compression_ == LayerCompression::none) return;
  if (offset_ - data_begin_ > kAheadOfDisk) {
    (void)::sync_file_range(output_, static_cast<off_t>(data_begin_),
                            static_cast<off_t>(offset_ - data_begin_ - kAheadOfDisk),
                            SYNC_FILE_RANGE_WAIT_BEFORE);
  }
  const auto now = Clock::now();
  waited_ += now - begin;
  if (waited_ > kDiskIsSlow && kSlowPart * waited_ > now - began_) plain_ = false;
}

/// Assigns the next position in the image to the block.
void DataWriter::place(Slot& slot) {
  const std::size_t unit = is_erofs() ? kPageBytes : 1;
  const std::size_t units = (slot.result.size() + unit - 1) / unit;
  const auto size = static_cast<std::uint32_t>(units) | (slot.compressed ? 0 : FileData::kAsIs);
  for (const PackedInode& packed : slot.inodes)
    packed.inode->reference = (offset_ + packed.at) / erofs::kSlot;
  slot.inodes.clear();
  if (slot.file) {
    if (slot.file->start == 0) slot.file->start = offset_;
    slot.file->blocks[slot.index] = size;
    slot.file.reset();
  } else {
    fragments_[slot.index] = {.start = offset_, .stored_size = size};
  }
  offset_ += units * unit;
}

/// erofs: begins a file that fits into a page together with its inode.
Result<void> DataWriter::begin_packed(const std::shared_ptr<Inode>& inode, std::uint64_t size) {
  const std::string head =
      SPC_TRY(erofs::record_head(*inode, {.layout = erofs::Layout::inlined, .size = size}));
  std::size_t at = (fragment_size_ + erofs::kSlot - 1) / erofs::kSlot * erofs::kSlot;
  if (at % kPageBytes + head.size() + size > kPageBytes)
    at = (at + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (at + head.size() + size > kBlockBytes) {
    SPC_TRY(flush_fragments());
    at = 0;
  }
  std::memset(fragment_.get() + fragment_size_, 0, at - fragment_size_);
  std::memcpy(fragment_.get() + at, head.data(), head.size());
  fragment_size_ = at + head.size();
  packed_.push_back({inode, at});
  return {};
}

Result<void> DataWriter::begin(const std::shared_ptr<Inode>& inode, std::uint64_t size,
                               bool sparse) {
  file_ = {inode, &std::get<FileData>(inode->content)};
  file_->size = size;
  partial_size_ = 0;
  if (is_erofs()) {
    shares_block_ = size > 0 && erofs::head_bytes(*inode) + size <= kPageBytes;
    as_is_ = sparse;
    has_holes_ = sparse || compression_ == LayerCompression::none;
    if (shares_block_) return begin_packed(inode, size);
    file_->blocks.reserve((size + kBlockBytes - 1) / kBlockBytes);
    return {};
  }
  has_holes_ = true;
  shares_block_ = size < kBlockBytes;
  if (shares_block_) {
    if (size == 0) return {};
    if (fragment_size_ + size > kBlockBytes) SPC_TRY(flush_fragments());
    file_->fragment = static_cast<std::uint32_t>(fragments_.size());
    file_->fragment_offset = static_cast<std::uint32_t>(fragment_size_);
  } else {
    file_->blocks.reserve((size + kBlockBytes - 1) / kBlockBytes);
  }
  return {};
}

Result<void> DataWriter::add_bytes(std::span<const std::byte> bytes, const PieceRef* piece) {
  if (shares_block_) {
    std::memcpy(fragment_.get() + fragment_size_, bytes.data(), bytes.size());
    fragment_size_ += bytes.size();
    return {};
  }
  while (!bytes.empty()) {
    if (piece != nullptr && partial_size_ == 0 && bytes.size() >= kBlockBytes) {
      SPC_TRY(add_block(bytes.first(kBlockBytes), piece));
      bytes = bytes.subspan(kBlockBytes);
      continue;
    }
    const auto count = std::min(bytes.size(), kBlockBytes - partial_size_);
    std::memcpy(partial_.get() + partial_size_, bytes.data(), count);
    partial_size_ += count;
    bytes = bytes.subspan(count);
    if (partial_size_ == kBlockBytes) {
      SPC_TRY(add_block({partial_.get(), partial_size_}, nullptr));
      partial_size_ = 0;
    }
  }
  return {};
}

Result<void> DataWriter::add_zeros(std::uint64_t count) {
  if (shares_block_) {
    std::memset(fragment_.get() + fragment_size_, 0, count);
    fragment_size_ += count;
    return {};
  }
  while (count > 0) {
    if (partial_size_ == 0 && count >= kBlockBytes && has_holes_) {
      file_->blocks.push_back(0);
      file_->holes += kBlockBytes;
      count -= kBlockBytes;
      continue;
    }
    const auto step =
        static_cast<std::size_t>(std::min<std::uint64_t>(count, kBlockBytes - partial_size_));
    std::memset(partial_.get() + partial_size_, 0, step);
    partial_size_ += step;
    count -= step;
    if (partial_size_ == kBlockBytes) {
      SPC_TRY(add_block({partial_.get(), partial_size_}, nullptr));
      partial_size_ = 0;
    }
  }
  return {};
}

Result<void> DataWriter::end() {
  if (!shares_block_ && partial_size_ > 0)
    SPC_TRY(add_block({partial_.get(), partial_size_}, nullptr));
  partial_size_ = 0;
  file_.reset();
  return {};
}

Result<void> DataWriter::add_block(std::span<const std::byte> bytes, const PieceRef* piece) {
  const auto index = file_->blocks.size();
  file_->blocks.push_back(0);
  if (has_holes_ && all_zero(bytes)) {
    file_->holes += bytes.size();
    return {};
  }
  return submit(bytes, piece == nullptr ? &partial_ : nullptr, piece, file_, index);
}

Result<void> DataWriter::flush_fragments() {
  if (fragment_size_ == 0) return {};
  const auto index = fragments_.size();
  fragments_.emplace_back();
  return submit({fragment_.get(), std::exchange(fragment_size_, 0)}, &fragment_, nullptr, nullptr,
                index);
}

Result<void> DataWriter::finish() {
  SPC_TRY(flush_fragments());
  if (written_ < submitted_) SPC_TRY(write_done(submitted_ - written_));
  return {};
}

}  // namespace spc
