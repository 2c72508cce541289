#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "filesystem/piece_queue.hpp"
#include "filesystem/tree.hpp"
#include "protocol/layer.hpp"

namespace spc {

inline constexpr std::size_t kBlockBytes = std::size_t{128} << 10;

/// Compresses file data into the blocks of an image and writes them in order, while streaming.
///
/// libsquashfs's block processor is not used: it copies every byte once more, hashes every block to
/// find duplicate files and compares each file with all earlier blocks, in quadratic time. This
/// class compresses a whole block from the inflating thread's buffer. The last, short block of a
/// file is separate. The result depends only on the input, not on the number of threads. Without
/// compression the caller writes blocks from that buffer, up to 1 MiB at once.
///
/// Small files share blocks. squashfs: files smaller than a block are in fragments. erofs: files
/// that fit into 4 KiB with their inode are written with it, packed into uncompressed blocks.
/// Larger files occupy whole multiples of 4 KiB.
class DataWriter {
 public:
  /// Starts `workers` threads and returns when they are ready. Without workers, the caller
  /// compresses blocks. `offset`: position of the first block. `plain_first`: store blocks as they
  /// are until the disk turns out to be slower than the caller. The result then depends on that.
  DataWriter(int output, std::uint64_t offset, unsigned workers, LayerCompression compression,
             LayerFormat format = LayerFormat::squashfs, bool plain_first = false);
  ~DataWriter();
  DataWriter(const DataWriter&) = delete;
  DataWriter& operator=(const DataWriter&) = delete;

  /// Begins a file. Then add exactly `size` bytes of data and zeros, and end it. Its FileData is
  /// complete after finish(), and for erofs also the reference of an inode written here. The
  /// inode's attributes must be set before. `sparse`: most of it may be holes.
  Result<void> begin(const std::shared_ptr<Inode>& inode, std::uint64_t size, bool sparse = false);
  Result<void> add(std::span<const std::byte> bytes, const PieceRef& piece) {
    return add_bytes(bytes, &piece);
  }
  Result<void> add_copy(std::span<const std::byte> bytes) { return add_bytes(bytes, nullptr); }
  Result<void> add_zeros(std::uint64_t count);
  Result<void> end();

  /// Waits until all blocks are written.
  Result<void> finish();

  struct Fragment {
    std::uint64_t start = 0;
    std::uint32_t stored_size = 0;
  };
  [[nodiscard]] const std::vector<Fragment>& fragments() const { return fragments_; }
  [[nodiscard]] std::uint64_t offset() const { return offset_; }  ///< after the last block

 private:
  using Clock = std::chrono::steady_clock;
  using Buffer = std::unique_ptr<std::byte[]>;
  /// An inode that is written with its file's content, and its offset in the block.
  struct PackedInode {
    std::shared_ptr<Inode> inode;
    std::size_t at = 0;
  };
  static constexpr std::size_t kSlots = 24;

  /// A block being compressed and written. Slots are a ring: filled, compressed and written in
  /// order.
  struct Slot {
    std::span<const std::byte> input;
    PieceRef piece;  ///< holds the input, unless it is `own`
    Buffer own;
    Buffer output;
    std::span<const std::byte> result;
    bool as_is = false;  ///< do not compress
    bool compressed = false;
    bool done = false;
    std::shared_ptr<FileData> file;  ///< null: small files
    std::size_t index = 0;           ///< index of the block in the file or of the fragment
    std::vector<PackedInode> inodes;
  };
  class Compressor;

  Result<void> add_bytes(std::span<const std::byte> bytes, const PieceRef* piece);
  Result<void> add_block(std::span<const std::byte> bytes, const PieceRef* piece);
  Result<void> begin_packed(const std::shared_ptr<Inode>& inode, std::uint64_t size);
  Result<void> flush_fragments();
  Result<void> submit(std::span<const std::byte> bytes, Buffer* own, const PieceRef* piece,
                      std::shared_ptr<FileData> file, std::size_t index);
  Result<void> write_done(std::size_t at_least);
  void begin_write_back();
  void place(Slot& slot);
  void work();
  static void compress(Slot& slot, Compressor& compressor);
  [[nodiscard]] bool is_erofs() const { return format_ == LayerFormat::erofs; }

  int output_;
  const LayerCompression compression_;
  const LayerFormat format_;
  bool plain_;  ///< store blocks as they are
  const std::uint64_t data_begin_;
  std::uint64_t offset_;
  std::uint64_t written_back_;  ///< end of the data whose writeback has been started
  Clock::time_point began_;     ///< when writeback was first started
  Clock::duration waited_{};    ///< in writeback, while plain_
  std::shared_ptr<FileData> file_;
  bool shares_block_ = false;  ///< the file's data is added to the fragment block
  bool as_is_ = false;         ///< do not compress the file
  bool has_holes_ = false;     ///< do not store blocks of zeros
  Buffer partial_;             ///< an incomplete block of the file
  std::size_t partial_size_ = 0;
  Buffer fragment_;
  std::size_t fragment_size_ = 0;
  std::vector<Fragment> fragments_;
  std::vector<PackedInode> packed_;        ///< inodes in the fragment block
  const std::byte* kept_piece_ = nullptr;  ///< of unwritten blocks, if plain_

  // All counts only grow. A block's slot is its count modulo kSlots.
  std::mutex mutex_;
  std::condition_variable work_there_;
  std::condition_variable work_done_;
  std::vector<Slot> slots_{kSlots};
  std::size_t submitted_ = 0;
  std::size_t taken_ = 0;
  std::size_t written_ = 0;
  bool waiting_ = false;
  bool stopped_ = false;
  std::latch ready_;
  std::unique_ptr<Compressor> inline_compressor_;
  std::vector<std::thread> threads_;
};

// --- squashfs tables ---

/// Returns the position of the first data block: after the super block and the compressor options.
Result<std::uint64_t> begin_squashfs(int output, LayerCompression compression);

/// Writes everything but the data: inodes, directories, fragments, attributes and finally the super
/// block. All owners are 0:0 and there is no date, so that the same tree gives the same bytes.
/// `owners`: 2 if user and group have an entry each in the owner table, else 1.
Result<void> write_squashfs_tables(int output, std::uint64_t data_end, LayerCompression compression,
                                   std::uint16_t owners, Inode& root,
                                   const std::vector<DataWriter::Fragment>& fragments);

}  // namespace spc
