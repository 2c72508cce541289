#pragma once

#define FUSE_USE_VERSION 35
#include <fuse3/fuse_lowlevel.h>

#include <atomic>
#include <memory>

#include "image/fuse/image_reader.hpp"

namespace spc::fuse {

/// Answers the kernel's requests for one image, for a mount with `allow_other,default_permissions`:
/// everything is owned by one user and group, nothing ever changes, and what cannot be read is EIO.
///
/// Only the extended attributes user.* and overlayfs's mark of an opaque directory exist: labels,
/// ACLs and capabilities written by others must have no effect.
class FileSystem {
 public:
  /// Before the session is created; the image may follow, but before the first request.
  static std::unique_ptr<FileSystem> create(uid_t uid, gid_t gid) {
    return std::unique_ptr<FileSystem>(new FileSystem(uid, gid));
  }
  void serve(std::unique_ptr<ImageReader> image) { reader_ = std::move(image); }

  /// Until the kernel has said how it speaks. It does so once, and libfuse takes that only once: no
  /// other server may join before.
  void await_init() const { is_initialized_.wait(false); }
  void initialize(fuse_conn_info& connection);

  /// For fuse_session_new(), with this object as user data.
  static const fuse_lowlevel_ops& operations();

  // One per kernel request; returns the reply, or an Error for EIO.
  Result<void> lookup(fuse_req_t request, fuse_ino_t parent, std::string_view name);
  Result<void> getattr(fuse_req_t request, fuse_ino_t node);
  Result<void> readlink(fuse_req_t request, fuse_ino_t node);
  Result<void> read(fuse_req_t request, fuse_ino_t node, std::size_t size, std::uint64_t offset);
  Result<void> readdir(fuse_req_t request, fuse_ino_t node, std::size_t size, std::uint64_t offset,
                       bool with_attributes);
  Result<void> getxattr(fuse_req_t request, fuse_ino_t node, std::string_view name,
                        std::size_t size);
  Result<void> listxattr(fuse_req_t request, fuse_ino_t node, std::size_t size);
  Result<void> statfs(fuse_req_t request);

 private:
  FileSystem(uid_t uid, gid_t gid) : uid_(uid), gid_(gid) {}
  [[nodiscard]] std::uint64_t reference_of(fuse_ino_t node) const;
  [[nodiscard]] fuse_ino_t node_of(std::uint64_t reference) const;
  Result<Inode> existing(fuse_ino_t node);
  [[nodiscard]] fuse_entry_param entry_of(const Inode& inode) const;
  [[nodiscard]] struct stat attributes_of(const Inode& inode) const;

  const uid_t uid_;
  const gid_t gid_;
  std::unique_ptr<ImageReader> reader_;
  std::atomic<bool> is_initialized_ = false;
};

}  // namespace spc::fuse
