#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "image/layer/archive/piece_queue.hpp"
#include "image/layer/tree.hpp"
#include "protocol/layer.hpp"

namespace spc {

inline constexpr std::size_t kBlockBytes = std::size_t{128} << 10;

/// Compresses file data into the blocks of an image and writes them in order, while streaming.
///
/// Replaces libsquashfs's block processor, which copies every byte once more, hashes every block to
/// find duplicate files and compares each file with all blocks before it, which is quadratic. Here
/// a whole block is compressed where the inflating thread put it. The last, short block of a file
/// is separate. The result depends only on the input, not on the number of threads.
///
/// Small files share blocks. squashfs: those smaller than a block, in fragments. erofs: those that
/// fit into 4 KiB with their inode, which is written with them, packed into blocks that are not
/// compressed; larger ones take whole multiples of 4 KiB.
class DataWriter {
 public:
  /// Starts `workers` threads and returns when they are ready; with none, blocks are compressed by
  /// the caller. `offset`: of the first block.
  DataWriter(int output, std::uint64_t offset, unsigned workers, LayerCompression compression,
             LayerFormat format = LayerFormat::squashfs);
  ~DataWriter();
  DataWriter(const DataWriter&) = delete;
  DataWriter& operator=(const DataWriter&) = delete;

  /// Each file is begun, gets exactly `size` bytes of data and zeros, and is ended. Its FileData is
  /// complete after finish(), and with erofs the reference of an inode that was written. The
  /// inode's attributes are known already. `sparse`: most of it may be holes.
  Result<void> begin(const std::shared_ptr<Inode>& inode, std::uint64_t size, bool sparse = false);
  Result<void> add(std::span<const std::byte> bytes, const PieceRef& piece) {
    return add_bytes(bytes, &piece);
  }
  Result<void> add_copy(std::span<const std::byte> bytes) { return add_bytes(bytes, nullptr); }
  Result<void> add_zeros(std::uint64_t count);
  Result<void> end();

  /// Waits until everything is written.
  Result<void> finish();

  struct Fragment {
    std::uint64_t start = 0;
    std::uint32_t stored_size = 0;
  };
  [[nodiscard]] const std::vector<Fragment>& fragments() const { return fragments_; }
  [[nodiscard]] std::uint64_t offset() const { return offset_; }  ///< after the last block

 private:
  using Buffer = std::unique_ptr<std::byte[]>;
  /// An inode that is written with its file's content, and where in the block.
  struct PackedInode {
    std::shared_ptr<Inode> inode;
    std::size_t at = 0;
  };
  static constexpr std::size_t kSlots = 24;

  /// A block being compressed and written. Slots are a ring: taken, compressed and written in
  /// order.
  struct Slot {
    std::span<const std::byte> input;
    PieceRef piece;  ///< holds the input, unless it is `own`
    Buffer own;
    Buffer output;
    std::span<const std::byte> result;
    bool as_is = false;  ///< it must not be compressed
    bool compressed = false;
    bool done = false;
    std::shared_ptr<FileData> file;  ///< none: small files
    std::size_t index = 0;           ///< among the file's blocks, or among the fragments
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
  std::uint64_t offset_;
  std::uint64_t written_back_;  ///< writeback has been started up to here
  std::shared_ptr<FileData> file_;
  bool shares_block_ = false;  ///< the file goes into the fragment block
  bool as_is_ = false;         ///< the file is not compressed
  bool has_holes_ = false;     ///< blocks of zeros are left out
  Buffer partial_;             ///< an incomplete block of the file
  std::size_t partial_size_ = 0;
  Buffer fragment_;
  std::size_t fragment_size_ = 0;
  std::vector<Fragment> fragments_;
  std::vector<PackedInode> packed_;  ///< in the fragment block

  // All counts only grow; a block's slot is its count modulo kSlots.
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

}  // namespace spc
