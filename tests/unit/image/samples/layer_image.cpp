#include "unit/image/samples/layer_image.hpp"

#include <isa-l/igzip_lib.h>
#include <sqfs/compressor.h>
#include <sqfs/data_reader.h>
#include <sqfs/dir_reader.h>
#include <sqfs/id_table.h>
#include <sqfs/inode.h>
#include <sqfs/io.h>
#include <sqfs/super.h>
#include <sqfs/xattr.h>
#include <sqfs/xattr_reader.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/file.hpp"
#include "verify/verify.hpp"

namespace spc::test {
namespace {

/// Fuzz targets use this file as well, so it does not depend on the test framework.
template <typename Condition>
void must(const Condition& holds, int line = __builtin_LINE()) {
  if (!holds)
    throw std::logic_error("layer_image.cpp:" + std::to_string(line) +
                           ": the image cannot be read");
}

struct Destroy {
  void operator()(void* object) const { sqfs_destroy(object); }
};
template <typename T>
using Owned = std::unique_ptr<T, Destroy>;

class Reader {
 public:
  explicit Reader(int fd) {
    file_.reset(
        sqfs_open_file(("/proc/self/fd/" + std::to_string(fd)).c_str(), SQFS_FILE_OPEN_READ_ONLY));
    must(file_);
    must(sqfs_super_read(&super_, file_.get()) == 0);
    must(super_.compression_id == SQFS_COMP_ZSTD || super_.compression_id == SQFS_COMP_LZ4);
    sqfs_compressor_config_t config{};
    sqfs_compressor_t* compressor = nullptr;
    const auto compression = static_cast<SQFS_COMPRESSOR>(super_.compression_id);
    sqfs_compressor_config_init(&config, compression, super_.block_size, SQFS_COMP_FLAG_UNCOMPRESS);
    must(sqfs_compressor_create(&config, &compressor) == 0);
    compressor_.reset(compressor);
    ids_.reset(sqfs_id_table_create(0));
    must(sqfs_id_table_read(ids_.get(), file_.get(), &super_, compressor) == 0);
    data_.reset(sqfs_data_reader_create(file_.get(), super_.block_size, compressor, 0));
    must(sqfs_data_reader_load_fragment_table(data_.get(), &super_) == 0);
    directories_.reset(sqfs_dir_reader_create(&super_, compressor, file_.get(), 0));
    if ((super_.flags & SQFS_FLAG_NO_XATTRS) == 0) {
      xattrs_.reset(sqfs_xattr_reader_create(0));
      must(sqfs_xattr_reader_load(xattrs_.get(), &super_, file_.get(), compressor) == 0);
    }
  }

  Image read() {
    sqfs_tree_node_t* root = nullptr;
    must(sqfs_dir_reader_get_full_hierarchy(directories_.get(), ids_.get(), nullptr, 0, &root) ==
         0);
    const std::unique_ptr<sqfs_tree_node_t, void (*)(sqfs_tree_node_t*)> tree(
        root, sqfs_dir_tree_destroy);
    Image image;
    walk(image, "", *root);
    return image;
  }

 private:
  void walk(Image& image, const std::string& path, const sqfs_tree_node_t& node) {
    image[path] = found(node);
    for (const auto* child = node.children; child != nullptr; child = child->next) {
      const std::string name(reinterpret_cast<const char*>(child->name));
      walk(image, path.empty() ? name : path + '/' + name, *child);
    }
  }

  Found found(const sqfs_tree_node_t& node) {
    auto& inode = *node.inode;
    Found found{.mode = inode.base.mode,
                .inode = inode.base.inode_number,
                .mtime = inode.base.mod_time,
                .uid = node.uid,
                .gid = node.gid};
    sqfs_u32 xattr = 0;
    sqfs_inode_get_xattr_index(&inode, &xattr);
    if (xattr != 0xffffffff) read_xattrs(xattr, found);
    must(sqfs_inode_make_extended(&inode) == 0);
    switch (inode.base.type) {
      case SQFS_INODE_EXT_FILE:
        found.links = inode.data.file_ext.nlink;
        found.size = inode.data.file_ext.file_size;
        if (found.size < (std::uint64_t{1} << 26U)) {
          found.data.resize(found.size);
          sqfs_u64 at = 0;
          while (at < found.size) {
            const auto got = sqfs_data_reader_read(data_.get(), &inode, at, found.data.data() + at,
                                                   static_cast<sqfs_u32>(found.size - at));
            if (got <= 0) throw DamagedData();
            at += static_cast<sqfs_u64>(got);
          }
        }
        break;
      case SQFS_INODE_EXT_SLINK:
        found.links = inode.data.slink_ext.nlink;
        found.data.assign(reinterpret_cast<const char*>(inode.extra),
                          inode.data.slink_ext.target_size);
        break;
      case SQFS_INODE_EXT_DIR: found.links = inode.data.dir_ext.nlink; break;
      case SQFS_INODE_EXT_FIFO: found.links = inode.data.ipc_ext.nlink; break;
      default: found.links = inode.data.dev_ext.nlink; found.device = inode.data.dev_ext.devno;
    }
    return found;
  }

  void read_xattrs(std::uint32_t index, Found& found) {
    must(xattrs_);
    sqfs_xattr_id_t set{};
    must(sqfs_xattr_reader_get_desc(xattrs_.get(), index, &set) == 0);
    must(sqfs_xattr_reader_seek_kv(xattrs_.get(), &set) == 0);
    for (std::uint32_t i = 0; i < set.count; ++i) {
      sqfs_xattr_entry_t* key = nullptr;
      sqfs_xattr_value_t* value = nullptr;
      must(sqfs_xattr_reader_read_key(xattrs_.get(), &key) == 0);
      must(sqfs_xattr_reader_read_value(xattrs_.get(), key, &value) == 0);
      found.xattrs[reinterpret_cast<const char*>(key->key)].assign(
          reinterpret_cast<const char*>(value->value), value->size);
      sqfs_free(key);
      sqfs_free(value);
    }
  }

  sqfs_super_t super_{};
  Owned<sqfs_file_t> file_;
  Owned<sqfs_compressor_t> compressor_;
  Owned<sqfs_id_table_t> ids_;
  Owned<sqfs_data_reader_t> data_;
  Owned<sqfs_dir_reader_t> directories_;
  Owned<sqfs_xattr_reader_t> xattrs_;
};

}  // namespace

Image read_image(int fd) { return Reader(fd).read(); }

UniqueFd memory_file(std::string_view bytes) {
  UniqueFd file(::memfd_create("layer-test", MFD_CLOEXEC));
  must(file);
  must(write_all(file.get(), bytes));
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

std::string contents(int fd) {
  ::lseek(fd, 0, SEEK_SET);
  return read_file(fd, std::size_t{1} << 30U).value();
}

Converted convert(std::string_view blob, unsigned workers, const LayerLimits& limits) {
  const auto input = memory_file(blob);
  auto output = memory_file();
  auto converter = LayerConverter::create(input.get(), output.get(), workers, limits);
  must(converter);
  auto layer = converter->run();
  if (layer) {
    const std::string image = contents(output.get());
    const auto accepted = verify_layer(std::as_bytes(std::span(image)));
    if (!accepted)
      throw std::logic_error("the verifier refuses what the converter made: " +
                             accepted.error().message());
  }
  return {std::move(layer), std::move(output)};
}

std::string gzip(std::string_view bytes) {
  std::string out(4096 + bytes.size() * 2, '\0');
  isal_zstream stream;
  isal_deflate_init(&stream);
  stream.gzip_flag = IGZIP_GZIP;
  stream.end_of_stream = 1;
  stream.next_in = reinterpret_cast<std::uint8_t*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<std::uint32_t>(bytes.size());
  stream.next_out = reinterpret_cast<std::uint8_t*>(out.data());
  stream.avail_out = static_cast<std::uint32_t>(out.size());
  must(isal_deflate(&stream) == COMP_OK);
  must(stream.internal_state.state == ZSTATE_END);
  out.resize(stream.total_out);
  return out;
}

std::string zstd(std::string_view bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 3));
  return out;
}

}  // namespace spc::test
