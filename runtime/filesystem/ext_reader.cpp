// Reader of ext images, and the decompressors of `fuse`.

#include <sys/stat.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <mutex>

#include <ext2fs/ext2fs.h>  // behind <algorithm>: e2fsprogs 1.47.2 has a macro clamp
#undef clamp
extern "C" {
#include <squashfuse/decompress.h>  // last: it defines _POSIX_C_SOURCE
}

#include "filesystem/image_reader.hpp"
#include "reference/first_bytes.hpp"

namespace spc::fuse {

// --- ext reader ---

namespace {

constexpr std::size_t kExtHeadBytes = 2048;
constexpr std::size_t kExtSuperAt = 1024;
constexpr std::uint16_t kExtMagic = 0xef53;
constexpr std::uint32_t kNotRead = EXT3_FEATURE_INCOMPAT_JOURNAL_DEV |
                                   EXT4_FEATURE_INCOMPAT_EA_INODE | EXT4_FEATURE_INCOMPAT_ENCRYPT;
constexpr std::uint32_t kWidth = EXT4_FEATURE_INCOMPAT_64BIT;
constexpr std::uint32_t kExtUnit = 128 << 10;
constexpr std::size_t kEntryHead = 8;
constexpr std::array<mode_t, 8> kEntryModes{0,       S_IFREG, S_IFDIR,  S_IFCHR,
                                            S_IFBLK, S_IFIFO, S_IFSOCK, S_IFLNK};

// I/O manager for the library, read-only.

thread_local io_channel opening;

errcode_t give_channel(const char*, int, io_channel* channel) {
  *channel = opening;
  return 0;
}
errcode_t close_channel(io_channel) { return 0; }
errcode_t set_block_size(io_channel channel, int size) {
  channel->block_size = size;
  return 0;
}
/// `count`: number of blocks or, if negative, of bytes.
errcode_t read_blocks(io_channel channel, unsigned long long block, int count, void* into) {
  const auto unit = static_cast<std::uint64_t>(channel->block_size);
  const std::uint64_t size =
      count < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(std::int64_t{count})
                : static_cast<std::uint64_t>(count) * unit;
  const auto& image = *static_cast<const ImageFile*>(channel->private_data);
  if (block > image.size() / unit) return EXT2_ET_SHORT_READ;
  return image.read(block * unit, {static_cast<std::byte*>(into), size}) ? 0 : EXT2_ET_SHORT_READ;
}
errcode_t read_few_blocks(io_channel channel, unsigned long block, int count, void* into) {
  return read_blocks(channel, block, count, into);
}
errcode_t refuse_to_write(io_channel, unsigned long, int, const void*) { return EXT2_ET_RO_FILSYS; }
errcode_t refuse_to_write_far(io_channel, unsigned long long, int, const void*) {
  return EXT2_ET_RO_FILSYS;
}
errcode_t flush_nothing(io_channel) { return 0; }

struct_io_manager reading_manager() {
  struct_io_manager manager{};
  manager.magic = EXT2_ET_MAGIC_IO_MANAGER;
  manager.name = "image";
  manager.open = give_channel;
  manager.close = close_channel;
  manager.set_blksize = set_block_size;
  manager.read_blk = read_few_blocks;
  manager.read_blk64 = read_blocks;
  manager.write_blk = refuse_to_write;
  manager.write_blk64 = refuse_to_write_far;
  manager.flush = flush_nothing;
  return manager;
}
struct_io_manager manager = reading_manager();

ext2_inode* small(ext2_inode_large& raw) { return reinterpret_cast<ext2_inode*>(&raw); }

bool has_attributes(const ext2_inode_large& raw) {
  if (raw.i_file_acl != 0 || raw.osd2.linux2.l_i_file_acl_high != 0) return true;
  return raw.i_extra_isize != 0;  // there may be attributes after the extra fields
}

/// Deleter of the library's extent handles.
struct FreeExtents {
  void operator()(ext2_extent_handle* handle) const { ::ext2fs_extent_free(handle); }
};

struct Found {
  blk64_t block = 0;  ///< 0: a hole
  std::uint64_t count = 1;
};

/// Returns the position of a block of a file with extents, and the number of consecutive blocks.
Result<Found> extent_at(ext2_extent_handle_t extents, blk64_t wanted) {
  const errcode_t found = ::ext2fs_extent_goto(extents, wanted);
  if (found == EXT2_ET_EXTENT_NOT_FOUND || found == EXT2_ET_NO_CURRENT_NODE) return Found();
  ext2fs_extent extent{};
  if (found != 0 || ::ext2fs_extent_get(extents, EXT2_EXTENT_CURRENT, &extent) != 0)
    return damaged("an invalid extent");
  if (wanted < extent.e_lblk || wanted - extent.e_lblk >= extent.e_len) return Found();
  const std::uint64_t into = wanted - extent.e_lblk;
  const bool is_written = (extent.e_flags & EXT2_EXTENT_FLAGS_UNINIT) == 0;
  return Found{.block = is_written ? extent.e_pblk + into : 0, .count = extent.e_len - into};
}

/// Reads ext2, ext3 and ext4 file systems of users with libext2fs, which accesses the image through
/// ImageFile only. That library has no locks: one thread at a time looks up the position of
/// content. The thread then reads the content without blocking the others.
class ExtReader final : public ImageReader {
 public:
  using ImageReader::ImageReader;

  Result<void> open_system() {
    channel_.magic = EXT2_ET_MAGIC_IO_CHANNEL;
    channel_.manager = &manager;
    channel_.block_size = 1024;
    channel_.refcount = 1;
    channel_.private_data = const_cast<ImageFile*>(&image_);
    opening = &channel_;
    ext2_filsys system = nullptr;
    const errcode_t failed =
        ::ext2fs_open2("image", nullptr, EXT2_FLAG_64BITS, 0, 0, &manager, &system);
    opening = nullptr;
    if (failed == EXT2_ET_UNSUPP_FEATURE)
      return Error(ErrorKind::invalid, "the file system has a feature that is not supported");
    if (failed != 0) return damaged("the file system is corrupt: invalid super block");
    system_.reset(system);
    return {};
  }

 private:
  /// Position of a part of a file's content in the image. Parts of the content without a run are
  /// zero.
  struct Run {
    std::uint64_t position = 0;
    std::size_t at = 0, size = 0;
  };
  struct FreeFileSystem {
    void operator()(struct_ext2_filsys* system) const { ::ext2fs_free(system); }
  };
  using FileSystem = std::unique_ptr<struct_ext2_filsys, FreeFileSystem>;

  Result<ext2_inode_large> raw_inode(std::uint64_t reference) {
    if (reference == 0 || reference > system_->super->s_inodes_count)
      return damaged("an inode that there is not");
    ext2_inode_large raw{};
    if (::ext2fs_read_inode_full(system_.get(), static_cast<ext2_ino_t>(reference), small(raw),
                                 sizeof raw) != 0) {
      return damaged("an inode that cannot be read");
    }
    if ((raw.i_flags & EXT4_ENCRYPT_FL) != 0) return damaged("an encrypted file");
    return raw;
  }

  Result<Inode> load_inode(std::uint64_t reference) override {
    const std::lock_guard lock(one_at_a_time_);
    ext2_inode_large raw = SPC_TRY(raw_inode(reference));
    Inode inode;
    inode.reference = inode.number = reference;
    const mode_t type = raw.i_mode & S_IFMT;
    if (type == 0 || std::ranges::find(kEntryModes, type) == kEntryModes.end())
      return damaged("an inode of unknown type");
    inode.mode = type | (raw.i_mode & kKeptMode);
    inode.size = EXT2_I_SIZE(&raw);
    inode.mtime =
        (raw.i_mtime & 0x80000000U) != 0 && (raw.i_mtime_extra & 3U) == 0 ? 0 : raw.i_mtime;
    inode.links = raw.i_links_count;
    if (is_device(type)) inode.device = raw.i_block[0] | raw.i_block[1];
    inode.has_xattrs = has_attributes(raw);
    return inode;
  }

  Result<std::string> inline_content(ext2_ino_t number, ext2_inode_large& raw) {
    std::size_t size = 0;
    if (::ext2fs_inline_data_size(system_.get(), number, &size) != 0 || size > kExtUnit)
      return damaged("an invalid inline content");
    std::string bytes(size, '\0');
    if (::ext2fs_inline_data_get(system_.get(), number, small(raw), bytes.data(), &size) != 0)
      return damaged("an invalid inline content");
    return bytes;
  }

  Result<std::vector<Run>> runs(ext2_ino_t number, ext2_inode_large& raw, std::uint64_t start,
                                std::size_t size) {
    const std::uint64_t unit = system_->blocksize;
    std::unique_ptr<ext2_extent_handle, FreeExtents> extents;
    if ((raw.i_flags & EXT4_EXTENTS_FL) != 0) {
      ext2_extent_handle_t handle = nullptr;
      if (::ext2fs_extent_open2(system_.get(), number, small(raw), &handle) != 0)
        return damaged("invalid extents");
      extents.reset(handle);
    }
    std::vector<Run> all;
    for (std::uint64_t at = start; at < start + size;) {
      const blk64_t wanted = at / unit;
      Found found;
      if (extents) {
        found = SPC_TRY(extent_at(extents.get(), wanted));
      } else if (::ext2fs_bmap2(system_.get(), number, small(raw), nullptr, 0, wanted, nullptr,
                                &found.block) != 0) {
        return damaged("an invalid block of a file");
      }
      const std::uint64_t end =
          std::min<std::uint64_t>((wanted + found.count) * unit, start + size);
      if (found.block > image_.size() / unit) return damaged("a block beyond the end of the image");
      if (found.block != 0) {
        all.push_back({found.block * unit + at % unit, static_cast<std::size_t>(at - start),
                       static_cast<std::size_t>(end - at)});
      }
      at = end;
    }
    return all;
  }

  /// Reads a part within the file.
  Result<Block> content(std::uint64_t reference, std::uint64_t start, std::size_t size) {
    Block block{.bytes = std::make_unique<std::byte[]>(size), .size = size};
    std::vector<Run> parts;
    {
      const std::lock_guard lock(one_at_a_time_);
      ext2_inode_large raw = SPC_TRY(raw_inode(reference));
      const auto number = static_cast<ext2_ino_t>(reference);
      if ((raw.i_flags & EXT4_INLINE_DATA_FL) != 0) {
        const std::string bytes = SPC_TRY(inline_content(number, raw));
        if (start < bytes.size())
          std::memcpy(block.bytes.get(), bytes.data() + start,
                      std::min<std::size_t>(size, bytes.size() - start));
        return block;
      }
      parts = SPC_TRY(runs(number, raw, start, size));
    }
    for (const Run& part : parts)
      SPC_TRY(image_.read(part.position, {block.bytes.get() + part.at, part.size}));
    return block;
  }

  Result<std::vector<Piece>> load_content(const Inode& file, std::uint64_t start,
                                          std::uint64_t end) override {
    const auto wanted = static_cast<std::size_t>(end - start);
    auto block = std::make_shared<Block>(SPC_TRY(content(file.reference, start, wanted)));
    return std::vector<Piece>{{std::move(block), 0, wanted}};
  }

  Result<std::string> load_target(const Inode& inode) override {
    std::string target;
    {
      const std::lock_guard lock(one_at_a_time_);
      ext2_inode_large raw = SPC_TRY(raw_inode(inode.reference));
      const bool is_inside =
          (raw.i_flags & EXT4_INLINE_DATA_FL) == 0 && ::ext2fs_is_fast_symlink(small(raw)) != 0;
      if (is_inside && inode.size < sizeof raw.i_block)
        target.assign(reinterpret_cast<const char*>(raw.i_block), inode.size);
    }
    if (target.empty()) {
      const Block block =
          SPC_TRY(content(inode.reference, 0, static_cast<std::size_t>(inode.size)));
      target.assign(reinterpret_cast<const char*>(block.bytes.get()), block.size);
    }
    return target;
  }

  Result<void> load_directory(const Inode& inode, Directory& directory) override {
    if (inode.size > kMaxListing) return damaged("a directory that is too large");
    const auto read_it = [&] {
      const std::lock_guard lock(one_at_a_time_);
      return raw_inode(inode.reference);
    };
    const ext2_inode_large raw = SPC_TRY(read_it());
    const Block all = SPC_TRY(content(inode.reference, 0, static_cast<std::size_t>(inode.size)));
    const std::span<const std::byte> bytes(all.bytes.get(), all.size);
    if ((raw.i_flags & EXT4_INLINE_DATA_FL) != 0) {
      // Inline data: the inode has the parent's number and the first entries, an attribute has
      // further entries.
      constexpr std::size_t kParent = 4;
      const std::size_t inside = std::min(sizeof raw.i_block, bytes.size());
      if (inside < kParent) return damaged("an invalid directory");
      SPC_TRY(add_entries(bytes.subspan(kParent, inside - kParent), directory));
      SPC_TRY(add_entries(bytes.subspan(inside), directory));
    } else {
      const std::size_t unit = system_->blocksize;
      for (std::size_t at = 0; at < bytes.size(); at += unit) {
        SPC_TRY(add_entries(bytes.subspan(at, std::min(unit, bytes.size() - at)), directory));
      }
    }
    return {};
  }

  Result<void> add_entries(std::span<const std::byte> block, Directory& directory) {
    for (std::size_t at = 0; at + kEntryHead <= block.size();) {
      const auto number = number_at<std::uint32_t>(block, at);
      std::size_t length = number_at<std::uint16_t>(block, at + 4);
      const std::size_t name_bytes = number_at<std::uint8_t>(block, at + 6);
      const auto type = number_at<std::uint8_t>(block, at + 7);
      // In a block of 64 KiB, these values mean the whole block.
      if (length == 0 || length == 0xffff) length = block.size();
      if (length < kEntryHead || length % 4 != 0 || length > block.size() - at ||
          name_bytes > length - kEntryHead) {
        return damaged("an invalid directory entry");
      }
      const std::string_view name(reinterpret_cast<const char*>(block.data()) + at + kEntryHead,
                                  name_bytes);
      at += length;
      if (number == 0 || name == "." || name == "..") continue;
      mode_t mode = type < kEntryModes.size() ? kEntryModes[type] : 0;
      if (mode == 0 || is_device(mode)) {
        const auto inode = SPC_TRY(this->inode(number));
        if (!inode) continue;
        mode = inode->mode & S_IFMT;
      }
      SPC_TRY(directory.add(name, number, number, mode));
    }
    return {};
  }

  Result<Attributes> xattrs(const Inode& inode) override {
    Attributes found;
    if (!inode.has_xattrs) return found;
    const std::lock_guard lock(one_at_a_time_);
    SPC_TRY(raw_inode(inode.reference));
    ext2_xattr_handle* handle = nullptr;
    if (::ext2fs_xattrs_open(system_.get(), static_cast<ext2_ino_t>(inode.reference), &handle) != 0)
      return damaged("invalid extended attributes");
    const auto take = [](char* name, char* value, std::size_t size, void* into) {
      auto& list = *static_cast<Attributes*>(into);
      const bool is_content = std::string_view(name) == "system.data";  // content of a small file
      if (!is_content && list.size() < kMaxXattrs)
        list.emplace_back(name, std::string(value, size));
      return 0;
    };
    const bool is_read =
        ::ext2fs_xattrs_read(handle) == 0 && ::ext2fs_xattrs_iterate(handle, take, &found) == 0;
    ::ext2fs_xattrs_close(&handle);
    if (!is_read) return damaged("invalid extended attributes");
    return found;
  }

  struct_io_channel channel_{};
  std::mutex one_at_a_time_;
  FileSystem system_;
};

/// Returns whether `head`, an image's first kExtHeadBytes bytes, has the magic of ext.
bool looks_like_ext(std::span<const std::byte> head) {
  return head.size() >= kExtHeadBytes &&
         number_at<std::uint16_t>(head, kExtSuperAt + 56) == kExtMagic;
}

/// `head`: the image's first kExtHeadBytes bytes.
Result<std::unique_ptr<ImageReader>> open_ext(const ImageFile& image,
                                              std::span<const std::byte> head) {
  const auto super = head.subspan(kExtSuperAt);
  const auto features = number_at<std::uint32_t>(super, 96);
  const auto block_bits = number_at<std::uint32_t>(super, 24);
  if ((features & EXT3_FEATURE_INCOMPAT_RECOVER) != 0) {
    return Error(ErrorKind::invalid, "the file system was not unmounted, its journal has changes")
        .hint("e2fsck -fy FILE applies them");
  }
  if ((features & kNotRead) != 0)
    return Error(ErrorKind::invalid,
                 "the file system is encrypted or has another feature that is not supported");
  if (block_bits > 6) return damaged("the file system is corrupt: invalid block size");
  const std::uint64_t high = (features & kWidth) != 0 ? number_at<std::uint32_t>(super, 0x150) : 0;
  const std::uint64_t blocks = high << 32U | number_at<std::uint32_t>(super, 4);
  if (blocks == 0 || blocks > image.size() >> (10 + block_bits))
    return damaged("the file system is truncated: it ends beyond the end of the file");
  const ImageSummary summary{.root = EXT2_ROOT_INO,
                             .bytes = blocks << (10 + block_bits),
                             .inodes = number_at<std::uint32_t>(super, 0),
                             .block_size = kExtUnit,
                             .has_xattrs = true};
  auto reader = std::make_unique<ExtReader>(image, summary, CacheLimits());
  SPC_TRY(reader->open_system());
  return std::unique_ptr<ImageReader>(std::move(reader));
}

}  // namespace

// --- decompression ---

namespace {

bool knows(std::uint16_t compressor) { return ::sqfs_decompressor_get(compressor) != nullptr; }

/// Returns the thread's state for zstd. libsquashfuse makes and clears one of 150 KiB a block.
ZSTD_DCtx* zstd_state() {
  struct Free {
    void operator()(ZSTD_DCtx* state) const { ::ZSTD_freeDCtx(state); }
  };
  static thread_local const std::unique_ptr<ZSTD_DCtx, Free> state(::ZSTD_createDCtx());
  return state.get();
}

bool unpack(std::uint16_t compressor, std::span<const std::byte> block, std::byte* into,
            std::size_t& size) {
  if (compressor == kZstdCompressor && zstd_state() != nullptr) {
    size = ::ZSTD_decompressDCtx(zstd_state(), into, size, block.data(), block.size());
    return ::ZSTD_isError(size) == 0;
  }
  const sqfs_decompressor decompress = ::sqfs_decompressor_get(compressor);
  return decompress(const_cast<std::byte*>(block.data()), block.size(), into, &size) == SQFS_OK;
}

}  // namespace

Result<std::unique_ptr<ImageReader>> open_image(const ImageFile& image) {
  if (image.size() >= kExtHeadBytes) {
    std::array<std::byte, kExtHeadBytes> head{};
    SPC_TRY(image.read(0, head));
    if (!looks_like_squashfs(head) && looks_like_ext(head)) return open_ext(image, head);
  }
  return open_image(image, {knows, unpack}, {}, ErofsForm::of_users);
}

Result<std::unique_ptr<ImageReader>> open_image(int file, std::uint64_t offset) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return Error::from_errno(errno, "stat the image");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (offset > size)
    return Error(ErrorKind::corrupt, "the squashfs starts beyond the end of the file");
  return open_image(ImageFile(file, offset, size - offset));
}

}  // namespace spc::fuse
