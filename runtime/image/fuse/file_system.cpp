#include "image/fuse/file_system.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

namespace spc::fuse {
namespace {

constexpr double kForever = 365.0 * 24 * 3600;  // seconds: the image does not change
constexpr std::size_t kZeros = 64 << 10;
constexpr std::size_t kMostAsked =
    16 << 20;  // by the kernel: 256 pages of 64 KiB; who else asks gets no more
constexpr fuse_ino_t kNodesBefore =
    FUSE_ROOT_ID + 1;  // references begin at 0, and nodes 0 and 1 mean something

FileSystem& file_system_of(fuse_req_t request) {
  return *static_cast<FileSystem*>(::fuse_req_userdata(request));
}

/// Runs the answer to one request; whatever goes wrong becomes an errno, nothing leaves it. An
/// answer that the kernel does not want any more is nobody's error.
template <typename Answer>
void answer(fuse_req_t request, const Answer& body) noexcept {
  int err = EIO;
  try {
    const Result<void> done = body(file_system_of(request));
    if (done) return;
  } catch (const std::bad_alloc&) {
    err = ENOMEM;
  } catch (...) {
    err = EIO;
  }
  ::fuse_reply_err(request, err);
}

bool is_shown(std::string_view xattr) {
  return xattr.starts_with("user.") || xattr == "trusted.overlay.opaque";
}

/// A value or a list of names: its size if the caller has no room yet.
void reply_sized(fuse_req_t request, std::string_view bytes, std::size_t room) {
  if (room == 0) {
    ::fuse_reply_xattr(request, bytes.size());
  } else if (bytes.size() > room) {
    ::fuse_reply_err(request, ERANGE);
  } else {
    ::fuse_reply_buf(request, bytes.data(), bytes.size());
  }
}

void init(void* files, fuse_conn_info* connection) {
  static_cast<FileSystem*>(files)->initialize(*connection);
}

}  // namespace

void FileSystem::initialize(fuse_conn_info& connection) {
  constexpr unsigned kWanted = FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS |
                               FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
                               FUSE_CAP_CACHE_SYMLINKS | FUSE_CAP_NO_OPEN_SUPPORT |
                               FUSE_CAP_NO_OPENDIR_SUPPORT;
  connection.want = connection.capable & kWanted;
  is_initialized_ = true;
  is_initialized_.notify_all();
}

std::uint64_t FileSystem::reference_of(fuse_ino_t node) const {
  return node == FUSE_ROOT_ID ? reader_->summary().root : node - kNodesBefore;
}

fuse_ino_t FileSystem::node_of(std::uint64_t reference) const {
  return reference == reader_->summary().root ? FUSE_ROOT_ID : reference + kNodesBefore;
}

Result<Inode> FileSystem::existing(fuse_ino_t node) {
  auto inode = SPC_TRY(reader_->inode(reference_of(node)));
  if (!inode) return damaged("a device node");
  return *inode;
}

struct stat FileSystem::attributes_of(const Inode& inode) const {
  struct stat attributes {};
  attributes.st_ino = inode.number;
  attributes.st_mode = inode.mode;
  attributes.st_nlink = inode.links;
  attributes.st_uid = uid_;
  attributes.st_gid = gid_;
  attributes.st_size = static_cast<off_t>(inode.size);
  attributes.st_blocks = static_cast<blkcnt_t>((inode.size + 511) / 512);
  attributes.st_blksize = static_cast<blksize_t>(reader_->summary().block_size);
  attributes.st_atim.tv_sec = attributes.st_mtim.tv_sec = attributes.st_ctim.tv_sec = inode.mtime;
  return attributes;
}

fuse_entry_param FileSystem::entry_of(const Inode& inode) const {
  fuse_entry_param entry{};
  entry.ino = node_of(inode.reference);
  entry.attr = attributes_of(inode);
  entry.attr_timeout = entry.entry_timeout = kForever;
  return entry;
}

Result<void> FileSystem::lookup(fuse_req_t request, fuse_ino_t parent, std::string_view name) {
  const auto inode = SPC_TRY(existing(parent));
  const auto directory = SPC_TRY(reader_->directory(inode));
  fuse_entry_param entry{};
  entry.entry_timeout = kForever;  // of "there is no such file", unless it is found
  if (const Directory::Entry* found = directory->find(name)) {
    if (const auto child = SPC_TRY(reader_->inode(found->reference))) entry = entry_of(*child);
  }
  ::fuse_reply_entry(request, &entry);
  return {};
}

Result<void> FileSystem::getattr(fuse_req_t request, fuse_ino_t node) {
  const auto inode = SPC_TRY(existing(node));
  const struct stat attributes = attributes_of(inode);
  ::fuse_reply_attr(request, &attributes, kForever);
  return {};
}

Result<void> FileSystem::readlink(fuse_req_t request, fuse_ino_t node) {
  const auto inode = SPC_TRY(existing(node));
  const auto target = SPC_TRY(reader_->link_target(inode));
  ::fuse_reply_readlink(request, target.c_str());
  return {};
}

Result<void> FileSystem::read(fuse_req_t request, fuse_ino_t node, std::size_t size,
                              std::uint64_t offset) {
  static std::array<std::byte, kZeros> zeros{};
  const auto inode = SPC_TRY(existing(node));
  const auto pieces = SPC_TRY(reader_->read(inode, offset, std::min(size, kMostAsked)));
  std::vector<iovec> parts;
  for (const Piece& piece : pieces) {
    if (piece.block) {
      parts.push_back({piece.block->bytes.get() + piece.offset, piece.size});
      continue;
    }
    for (std::size_t left = piece.size; left != 0; left -= parts.back().iov_len) {
      parts.push_back({zeros.data(), std::min(left, zeros.size())});
    }
  }
  ::fuse_reply_iov(request, parts.data(), static_cast<int>(parts.size()));
  return {};
}

Result<void> FileSystem::readdir(fuse_req_t request, fuse_ino_t node, std::size_t size,
                                 std::uint64_t offset, bool with_attributes) {
  const auto inode = SPC_TRY(existing(node));
  const auto directory = SPC_TRY(reader_->directory(inode));
  size = std::min(size, kMostAsked);
  std::vector<char> answer(size);
  std::size_t used = 0;
  // Offsets count entries; 0 and 1 are "." and "..", of which the kernel wants no more than the
  // type.
  for (std::uint64_t at = offset; at < directory->entries.size() + 2; ++at) {
    fuse_entry_param entry{};
    entry.attr.st_mode = S_IFDIR;
    entry.attr.st_ino = inode.number;
    std::string name = at == 0 ? "." : "..";
    if (at >= 2) {
      const Directory::Entry& found = directory->entries[at - 2];
      name = directory->name(found);
      entry.attr.st_mode = found.type;
      entry.attr.st_ino = found.number;
      if (with_attributes) {
        // One that cannot be read is listed without attributes, and whoever looks at it gets the
        // error.
        if (const auto known = reader_->inode(found.reference); known && *known)
          entry = entry_of(**known);
      }
    }
    const std::size_t needed =
        with_attributes
            ? ::fuse_add_direntry_plus(request, answer.data() + used, size - used, name.c_str(),
                                       &entry, static_cast<off_t>(at + 1))
            : ::fuse_add_direntry(request, answer.data() + used, size - used, name.c_str(),
                                  &entry.attr, static_cast<off_t>(at + 1));
    if (needed > size - used) break;
    used += needed;
  }
  ::fuse_reply_buf(request, answer.data(), used);
  return {};
}

Result<void> FileSystem::getxattr(fuse_req_t request, fuse_ino_t node, std::string_view name,
                                  std::size_t size) {
  if (!reader_->summary().has_xattrs) {
    ::fuse_reply_err(request, ENOSYS);  // the kernel never asks again
    return {};
  }
  if (is_shown(name)) {
    const auto inode = SPC_TRY(existing(node));
    for (const auto& [known, value] : SPC_TRY(reader_->xattrs(inode))) {
      if (known != name) continue;
      reply_sized(request, value, size);
      return {};
    }
  }
  ::fuse_reply_err(request, ENODATA);
  return {};
}

Result<void> FileSystem::listxattr(fuse_req_t request, fuse_ino_t node, std::size_t size) {
  const auto inode = SPC_TRY(existing(node));
  std::string names;
  for (const auto& [name, value] : SPC_TRY(reader_->xattrs(inode))) {
    if (is_shown(name)) names.append(name).push_back('\0');
  }
  reply_sized(request, names, size);
  return {};
}

Result<void> FileSystem::statfs(fuse_req_t request) {
  const ImageSummary& summary = reader_->summary();
  struct statvfs numbers {};
  numbers.f_bsize = numbers.f_frsize = summary.block_size;
  numbers.f_blocks = (summary.bytes + summary.block_size - 1) / summary.block_size;
  numbers.f_files = summary.inodes;
  numbers.f_namemax = 255;
  ::fuse_reply_statfs(request, &numbers);
  return {};
}

const fuse_lowlevel_ops& FileSystem::operations() {
  static const fuse_lowlevel_ops kOperations = [] {
    fuse_lowlevel_ops ops{};
    ops.init = init;
    ops.lookup = [](fuse_req_t request, fuse_ino_t parent, const char* name) {
      answer(request, [&](FileSystem& files) { return files.lookup(request, parent, name); });
    };
    ops.getattr = [](fuse_req_t request, fuse_ino_t node, fuse_file_info*) {
      answer(request, [&](FileSystem& files) { return files.getattr(request, node); });
    };
    ops.readlink = [](fuse_req_t request, fuse_ino_t node) {
      answer(request, [&](FileSystem& files) { return files.readlink(request, node); });
    };
    // "Not implemented" makes the kernel open files and directories by itself from then on, and
    // keep what it has read.
    ops.open = [](fuse_req_t request, fuse_ino_t, fuse_file_info*) {
      ::fuse_reply_err(request, ENOSYS);
    };
    ops.opendir = [](fuse_req_t request, fuse_ino_t, fuse_file_info*) {
      ::fuse_reply_err(request, ENOSYS);
    };
    ops.read = [](fuse_req_t request, fuse_ino_t node, std::size_t size, off_t offset,
                  fuse_file_info*) {
      answer(request, [&](FileSystem& files) {
        return files.read(request, node, size, static_cast<std::uint64_t>(offset));
      });
    };
    ops.readdir = [](fuse_req_t request, fuse_ino_t node, std::size_t size, off_t offset,
                     fuse_file_info*) {
      answer(request, [&](FileSystem& files) {
        return files.readdir(request, node, size, static_cast<std::uint64_t>(offset), false);
      });
    };
    ops.readdirplus = [](fuse_req_t request, fuse_ino_t node, std::size_t size, off_t offset,
                         fuse_file_info*) {
      answer(request, [&](FileSystem& files) {
        return files.readdir(request, node, size, static_cast<std::uint64_t>(offset), true);
      });
    };
    ops.getxattr = [](fuse_req_t request, fuse_ino_t node, const char* name, std::size_t size) {
      answer(request, [&](FileSystem& files) { return files.getxattr(request, node, name, size); });
    };
    ops.listxattr = [](fuse_req_t request, fuse_ino_t node, std::size_t size) {
      answer(request, [&](FileSystem& files) { return files.listxattr(request, node, size); });
    };
    ops.statfs = [](fuse_req_t request, fuse_ino_t) {
      answer(request, [&](FileSystem& files) { return files.statfs(request); });
    };
    return ops;
  }();
  return kOperations;
}

}  // namespace spc::fuse
