#pragma once

#include <cstdlib>
#include <memory>

#include "image/verify/attributes.hpp"
#include "image/verify/data_area.hpp"
#include "image/verify/listing.hpp"
#include "image/verify/meta_stream.hpp"
#include "image/verify/super_block.hpp"

namespace spc::verify {

/// The inodes and listings, each read once in file order.
///
/// Our writer puts an inode after everything that its listing names: a directory after its
/// subdirectories, each with all of its content, in the order of their names; then the other
/// entries in that order, unless already written under another name; then the directory itself.
/// Listings are in the order of their directories. This order is checked, so there can be neither
/// cycles, nor directories with two parents or none.
class InodeTree {
 public:
  InodeTree(LayerBytes& layer, const Layout& layout, DataArea& data, Attributes& attributes);

  Result<void> check();

 private:
  /// As listings name them.
  enum class Kind : std::uint8_t {
    none = 0,
    directory = 1,
    file = 2,
    symlink = 3,
    whiteout = 5,
    fifo = 6
  };

  /// State per inode, kept small: images have millions of them.
  struct Inode {
    std::uint32_t block;
    std::uint16_t offset;
    Kind kind;
    bool named;               ///< a listing has named it
    std::uint32_t order;      ///< its position among the inodes, from 0
    std::uint32_t link_left;  ///< names not yet seen in a listing; a directory's parent
    std::uint32_t first;      ///< directories: position of the first inode below it, or its own
    std::uint32_t height;     ///< directories: height of the tree below it
  };
  struct Common;
  struct DirectoryFields;
  class Order;

  Result<void> check_inode(std::uint32_t order);
  Result<void> check_file(Inode& inode, bool is_long);
  Result<void> check_symlink(Inode& inode);
  Result<void> check_directory(Inode& inode, std::uint32_t number, bool is_long);
  Result<DirectoryFields> read_directory(bool is_long);
  Result<Inode*> named_by(const Listing::Entry& entry);
  Result<void> check_index(const Listing::Begin& begin, std::string_view name);

  const Layout& layout_;
  DataArea& data_;
  Attributes& attributes_;
  MetaStream inodes_;
  MetaStream listings_;
  struct Free {
    void operator()(Inode* inodes) const { std::free(inodes); }
  };
  std::unique_ptr<Inode[], Free> known_;  ///< by number, from 1
  std::uint64_t names_left_ = 0;          ///< not yet seen in a listing
};

}  // namespace spc::verify
