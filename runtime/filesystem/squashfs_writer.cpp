#include <lz4.h>
#include <sqfs/compressor.h>
#include <sqfs/dir_writer.h>
#include <sqfs/error.h>
#include <sqfs/frag_table.h>
#include <sqfs/inode.h>
#include <sqfs/io.h>
#include <sqfs/meta_writer.h>
#include <sqfs/super.h>
#include <sqfs/xattr_writer.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/format.hpp"
#include "filesystem/data_writer.hpp"
#include "reference/first_bytes.hpp"

namespace spc {

namespace {

struct Destroy {
  void operator()(void* object) const { sqfs_destroy(object); }
};
template <typename T>
using Owned = std::unique_ptr<T, Destroy>;

struct Free {
  void operator()(sqfs_inode_generic_t* inode) const { std::free(inode); }
};
using OwnedInode = std::unique_ptr<sqfs_inode_generic_t, Free>;

/// Gives libsquashfs the inherited descriptor as its file, because no file can be opened in the
/// sandbox. Keeps the first errno, which the library would lose.
struct OutputFile {
  sqfs_file_t functions{};
  int fd = -1;
  std::uint64_t size = 0;
  int error = 0;

  OutputFile(int output, std::uint64_t begin) : fd(output), size(begin) {
    functions.base.destroy = [](sqfs_object_t*) {};
    functions.read_at = [](sqfs_file_t* file, sqfs_u64 offset, void* buffer, size_t count) {
      return of(file).transfer(static_cast<char*>(buffer), offset, count,
                               [](auto... a) { return ::pread(a...); });
    };
    functions.write_at = [](sqfs_file_t* file, sqfs_u64 offset, const void* buffer, size_t count) {
      OutputFile& self = of(file);
      const int rc = self.transfer(static_cast<const char*>(buffer), offset, count,
                                   [](auto... a) { return ::pwrite(a...); });
      if (rc == 0) self.size = std::max<std::uint64_t>(self.size, offset + count);
      return rc;
    };
    functions.get_size = [](const sqfs_file_t* file) -> sqfs_u64 {
      return reinterpret_cast<const OutputFile*>(file)->size;
    };
    functions.truncate = [](sqfs_file_t* file, sqfs_u64 wanted) {
      OutputFile& self = of(file);
      if (::ftruncate(self.fd, static_cast<off_t>(wanted)) != 0) return self.failed(errno);
      self.size = wanted;
      return 0;
    };
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  static OutputFile& of(sqfs_file_t* file) { return *reinterpret_cast<OutputFile*>(file); }

  int failed(int err) {
    if (error == 0) error = err;
    return SQFS_ERROR_IO;
  }

  template <typename Byte, typename Call>
  int transfer(Byte* buffer, std::uint64_t offset, std::size_t count, Call call) {
    while (count > 0) {
      const ssize_t done = call(fd, buffer, count, static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return failed(errno);
      if (done == 0) return SQFS_ERROR_OUT_OF_BOUNDS;
      buffer += done;
      offset += static_cast<std::uint64_t>(done);
      count -= static_cast<std::size_t>(done);
    }
    return 0;
  }
};

/// Returns the tables' compressor. Tables are small, and compressed even if data is not.
SQFS_COMPRESSOR number_of(LayerCompression compression) {
  return compression == LayerCompression::zstd ? SQFS_COMP_ZSTD : SQFS_COMP_LZ4;
}

/// Replaces libsquashfs's function, which would store a block that lz4 makes longer.
sqfs_s32 pack_with_lz4(sqfs_compressor_t*, const sqfs_u8* block, sqfs_u32 size, sqfs_u8* into,
                       sqfs_u32 room) {
  return LZ4_compress_default(reinterpret_cast<const char*>(block), reinterpret_cast<char*>(into),
                              static_cast<int>(size), static_cast<int>(std::min(room, size - 1)));
}

Owned<sqfs_compressor_t> make_compressor(LayerCompression compression) {
  sqfs_compressor_config_t config{};
  sqfs_compressor_t* compressor = nullptr;
  if (sqfs_compressor_config_init(&config, number_of(compression), kBlockBytes, 0) != 0)
    return nullptr;
  if (compression == LayerCompression::zstd) config.level = 1;
  if (sqfs_compressor_create(&config, &compressor) != 0) return nullptr;
  if (compression != LayerCompression::zstd) compressor->do_block = pack_with_lz4;
  return Owned<sqfs_compressor_t>(compressor);
}

class TableWriter {
 public:
  TableWriter(int output, std::uint64_t data_end, LayerCompression compression,
              std::uint16_t owners)
      : file_(output, data_end),
        compression_(compression),
        owners_(owners),
        compressor_(make_compressor(compression)),
        inodes_(sqfs_meta_writer_create(file(), compressor_.get(), 0)),
        listings_(
            sqfs_meta_writer_create(file(), compressor_.get(), SQFS_META_WRITER_KEEP_IN_MEMORY)),
        directories_(sqfs_dir_writer_create(listings_.get(), 0)),
        xattrs_(sqfs_xattr_writer_create(0)) {}

  Result<void> write(Inode& root, const std::vector<DataWriter::Fragment>& fragments);

 private:
  sqfs_file_t* file() { return &file_.functions; }
  Result<void> check(int rc, const char* what);
  Result<void> number(Inode& directory, unsigned depth);
  Result<void> write_directory(Inode& inode, std::uint32_t parent);
  Result<void> write_inode(Inode& inode);
  Result<void> write_generic(Inode& inode, sqfs_inode_generic_t& generic, std::uint16_t type);
  Result<std::uint32_t> xattr_index(const Inode& inode);
  Result<void> write_owners(sqfs_super_t& super);
  Result<void> pad();

  OutputFile file_;
  LayerCompression compression_;
  std::uint16_t owners_;
  Owned<sqfs_compressor_t> compressor_;
  Owned<sqfs_meta_writer_t> inodes_;
  Owned<sqfs_meta_writer_t> listings_;
  Owned<sqfs_dir_writer_t> directories_;
  Owned<sqfs_xattr_writer_t> xattrs_;
  std::uint32_t count_ = 0;
  std::vector<std::byte> scratch_;
};

Result<void> TableWriter::check(int rc, const char* what) {
  if (rc == 0) return {};
  if (file_.error != 0) return Error::from_errno(file_.error, "write the layer's image");
  if (rc == SQFS_ERROR_ALLOC) return Error::from_errno(ENOMEM, what);
  return Error(ErrorKind::internal, formatted("{}: libsquashfs error {}", what, -rc));
}

/// Numbers inodes so that entries of a directory have adjacent numbers, which keeps its listing
/// short. Also counts links.
Result<void> TableWriter::number(Inode& directory, unsigned depth) {
  for (auto& [name, inode] : std::get<Directory>(directory.content)) {
    if (inode->links++ == 0) {
      if (count_ == std::numeric_limits<std::uint32_t>::max())
        return Error(ErrorKind::no_space, "too many files");
      inode->number = ++count_;
    }
  }
  for (auto& [name, inode] : std::get<Directory>(directory.content)) {
    if (std::holds_alternative<Directory>(inode->content)) SPC_TRY(number(*inode, depth + 1));
  }
  return {};
}

Result<std::uint32_t> TableWriter::xattr_index(const Inode& inode) {
  std::uint32_t index = 0xffffffff;
  if (!inode.xattrs && !inode.opaque) return index;
  SPC_TRY(check(sqfs_xattr_writer_begin(xattrs_.get(), 0), "attributes"));
  const auto add = [&](const char* name, std::string_view value) {
    return check(sqfs_xattr_writer_add(xattrs_.get(), name, value.data(), value.size()),
                 "attributes");
  };
  if (inode.opaque) {
    // The kernel reads the first name when root mounts the overlay, the second with the option
    // userxattr.
    SPC_TRY(add("trusted.overlay.opaque", "y"));
    SPC_TRY(add("user.overlay.opaque", "y"));
  }
  if (inode.xattrs) {
    for (const Xattr& xattr : *inode.xattrs) SPC_TRY(add(xattr.name.c_str(), xattr.value));
  }
  SPC_TRY(check(sqfs_xattr_writer_end(xattrs_.get(), &index), "attributes"));
  return index;
}

Result<void> TableWriter::write_generic(Inode& inode, sqfs_inode_generic_t& generic,
                                        std::uint16_t type) {
  generic.base.mode = static_cast<sqfs_u16>(type | inode.mode);
  generic.base.mod_time = inode.mtime;
  generic.base.inode_number = inode.number;
  generic.base.uid_idx = 0;
  generic.base.gid_idx = static_cast<sqfs_u16>(owners_ - 1);
  sqfs_u64 block = 0;
  sqfs_u32 offset = 0;
  sqfs_meta_writer_get_position(inodes_.get(), &block, &offset);
  inode.reference = block << 16U | offset;
  return check(sqfs_meta_writer_write_inode(inodes_.get(), &generic), "inodes");
}

std::uint16_t type_of(const Inode& inode) {
  constexpr std::array<std::uint16_t, 5> kTypes{S_IFDIR, S_IFREG, S_IFLNK, S_IFIFO, S_IFCHR};
  return kTypes[inode.content.index()];  // in the order of the variant's alternatives
}

Result<void> TableWriter::write_inode(Inode& inode) {
  const auto* file = std::get_if<FileData>(&inode.content);
  const auto* link = std::get_if<Symlink>(&inode.content);
  const std::size_t extra = file != nullptr ? file->blocks.size() * sizeof(std::uint32_t)
                                            : (link != nullptr ? link->target.size() : 0);
  scratch_.assign(sizeof(sqfs_inode_generic_t) + extra, std::byte{0});
  auto& generic = *reinterpret_cast<sqfs_inode_generic_t*>(scratch_.data());
  generic.payload_bytes_available = generic.payload_bytes_used = static_cast<sqfs_u32>(extra);
  auto* payload = scratch_.data() + offsetof(sqfs_inode_generic_t, extra);
  const std::uint32_t xattr = SPC_TRY(xattr_index(inode));

  if (file != nullptr) {
    if (extra > 0) std::memcpy(payload, file->blocks.data(), extra);
    generic.base.type = SQFS_INODE_EXT_FILE;
    auto& data = generic.data.file_ext;
    data = {.blocks_start = file->start,
            .file_size = file->size,
            .sparse = file->holes,
            .nlink = inode.links,
            .fragment_idx = file->fragment,
            .fragment_offset = file->fragment_offset,
            .xattr_idx = xattr};
    // Convert to the short form if no field needs the long one.
    const bool is_short = inode.links == 1 && xattr == 0xffffffff && file->holes == 0 &&
                          file->start <= 0xffffffff && file->size <= 0xffffffff;
    if (is_short) SPC_TRY(check(sqfs_inode_make_basic(&generic), "inodes"));
  } else {
    if (link != nullptr) {
      std::memcpy(payload, link->target.data(), extra);
      generic.base.type = SQFS_INODE_SLINK;
      generic.data.slink = {.nlink = inode.links, .target_size = static_cast<sqfs_u32>(extra)};
    } else if (std::holds_alternative<Fifo>(inode.content)) {
      generic.base.type = SQFS_INODE_FIFO;
      generic.data.ipc = {.nlink = inode.links};
    } else {
      generic.base.type = SQFS_INODE_CDEV;  // overlayfs's whiteout: device 0:0
      generic.data.dev = {.nlink = inode.links, .devno = 0};
    }
  }
  return write_generic(inode, generic, type_of(inode));
}

Result<void> TableWriter::write_directory(Inode& inode, std::uint32_t parent) {
  auto& entries = std::get<Directory>(inode.content);
  std::uint32_t subdirectories = 0;
  for (auto& [name, child] : entries) {
    if (!std::holds_alternative<Directory>(child->content)) continue;
    ++subdirectories;
    SPC_TRY(write_directory(*child, inode.number));
  }
  for (auto& [name, child] : entries) {
    if (child->reference == Inode::kNotWritten) SPC_TRY(write_inode(*child));
  }
  SPC_TRY(check(sqfs_dir_writer_begin(directories_.get(), 0), "directories"));
  for (auto& [name, child] : entries) {
    SPC_TRY(check(
        sqfs_dir_writer_add_entry(directories_.get(), name.c_str(), child->number, child->reference,
                                  static_cast<sqfs_u16>(type_of(*child) | child->mode)),
        "directories"));
  }
  SPC_TRY(check(sqfs_dir_writer_end(directories_.get()), "directories"));
  const std::uint32_t xattr = SPC_TRY(xattr_index(inode));
  const OwnedInode generic(sqfs_dir_writer_create_inode(directories_.get(), 0, xattr, parent));
  if (!generic) return Error::from_errno(ENOMEM, "directories");
  // For 256 and more entries, libsquashfs 1.3 always writes the long form with an index, 1.2 only
  // if necessary. Write it only if necessary: layer-verifier accepts one form.
  if (generic->base.type == SQFS_INODE_EXT_DIR)
    SPC_TRY(check(sqfs_inode_make_basic(generic.get()), "directories"));
  (generic->base.type == SQFS_INODE_DIR ? generic->data.dir.nlink : generic->data.dir_ext.nlink) =
      2 + subdirectories;
  return write_generic(inode, *generic, S_IFDIR);
}

Result<void> TableWriter::write(Inode& root, const std::vector<DataWriter::Fragment>& fragments) {
  const Owned<sqfs_frag_table_t> table(sqfs_frag_table_create(0));
  if (!compressor_ || !inodes_ || !listings_ || !directories_ || !xattrs_ || !table) {
    return Error::from_errno(ENOMEM, "squashfs tables");
  }
  sqfs_super_t super{};
  SPC_TRY(check(sqfs_super_init(&super, kBlockBytes, 0, number_of(compression_)), "super block"));
  super.flags =
      static_cast<sqfs_u16>(super.flags | SQFS_FLAG_COMPRESSOR_OPTIONS | SQFS_FLAG_NO_DUPLICATES);
  for (const auto& fragment : fragments) {
    SPC_TRY(
        check(sqfs_frag_table_append(table.get(), fragment.start, fragment.stored_size, nullptr),
              "fragments"));
  }

  SPC_TRY(number(root, 0));
  root.number = ++count_;
  super.inode_count = count_;
  super.inode_table_start = file_.size;
  // The kernel expects a root whose parent does not exist.
  SPC_TRY(write_directory(root, count_ + 1));
  super.root_inode_ref = root.reference;
  SPC_TRY(check(sqfs_meta_writer_flush(inodes_.get()), "inodes"));
  super.directory_table_start = file_.size;
  SPC_TRY(check(sqfs_meta_writer_flush(listings_.get()), "directories"));
  SPC_TRY(check(sqfs_meta_write_write_to_file(listings_.get()), "directories"));
  SPC_TRY(
      check(sqfs_frag_table_write(table.get(), file(), &super, compressor_.get()), "fragments"));
  SPC_TRY(write_owners(super));
  SPC_TRY(check(sqfs_xattr_writer_flush(xattrs_.get(), file(), &super, compressor_.get()),
                "attributes"));
  super.bytes_used = file_.size;
  SPC_TRY(check(sqfs_super_write(&super, file()), "super block"));
  return pad();
}

/// Writes the table of owners: one uncompressed block, followed by its position. libsquashfs's own
/// table would contain the number 0 only once.
Result<void> TableWriter::write_owners(sqfs_super_t& super) {
  const std::uint64_t place = file_.size;
  const std::array<std::uint32_t, 2> numbers{};
  const std::size_t size = owners_ * sizeof numbers[0];
  const auto header = static_cast<std::uint16_t>(SquashfsSuper::kTablePlain | size);
  SPC_TRY(check(file_.functions.write_at(file(), place, &header, sizeof header), "owners"));
  SPC_TRY(check(file_.functions.write_at(file(), file_.size, numbers.data(), size), "owners"));
  super.id_count = owners_;
  super.id_table_start = file_.size;
  return check(file_.functions.write_at(file(), file_.size, &place, sizeof place), "owners");
}

/// Pads the file to whole pages: a loop device exposes whole sectors only, and would truncate an
/// odd end.
Result<void> TableWriter::pad() {
  constexpr std::uint64_t kPage = 4096;
  const auto rest = file_.size % kPage;
  if (rest == 0) return {};
  const std::array<std::byte, kPage> zeros{};
  return check(file_.functions.write_at(file(), file_.size, zeros.data(), kPage - rest), "padding");
}

}  // namespace

Result<std::uint64_t> begin_squashfs(int output, LayerCompression compression) {
  const auto compressor = make_compressor(compression);
  if (!compressor)
    return Error(ErrorKind::internal, "libsquashfs was built without the compression of layers");
  OutputFile file(output, 0);
  const sqfs_super_t nothing{};
  if (file.functions.write_at(&file.functions, 0, &nothing, sizeof nothing) != 0 ||
      compressor->write_options(compressor.get(), &file.functions) < 0) {
    return Error::from_errno(file.error != 0 ? file.error : EIO, "write the layer's image");
  }
  return file.size;
}

Result<void> write_squashfs_tables(int output, std::uint64_t data_end, LayerCompression compression,
                                   std::uint16_t owners, Inode& root,
                                   const std::vector<DataWriter::Fragment>& fragments) {
  return TableWriter(output, data_end, compression, owners).write(root, fragments);
}

}  // namespace spc
