#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/record.hpp"

namespace spc {

/// Held while a layer is converted, so that one process on the node does it. The kernel frees it when its holder dies.
class LayerLock {
 public:
  LayerLock(int file, std::int64_t offset) : file_(file), offset_(offset) {}
  LayerLock(LayerLock&& other) noexcept : file_(std::exchange(other.file_, -1)), offset_(other.offset_) {}
  LayerLock& operator=(LayerLock&&) = delete;
  ~LayerLock();

 private:
  int file_;  // the store's
  std::int64_t offset_;
};

/// The store as `import` may use it: reads everything, writes images/ and refs/, asks the agent for new layers.
class ImageStore {
 public:
  /// `directory` is borrowed.
  static Result<ImageStore> open(int directory);

  [[nodiscard]] bool has_layer(const Digest& blob) const;
  /// Empty when another process is converting this layer.
  Result<std::optional<LayerLock>> try_lock(const Digest& blob) const;

  /// Empty when there is none, or a damaged one, which will be replaced.
  Result<std::optional<ImageRecord>> image(const Digest& manifest) const;
  /// Puts or replaces a record in one step; it survives a crash of the node.
  Result<void> write_image(const Digest& manifest, const ImageRecord& record) const;

  struct Ref {
    Digest manifest;
    std::int64_t asked_at = 0;  ///< seconds since 1970
  };
  Result<std::optional<Ref>> ref(const std::string& name) const;
  Result<void> write_ref(const std::string& name, const Ref& ref) const;

  /// Bytes that an ordinary user could still write.
  Result<std::uint64_t> free_bytes() const;

 private:
  ImageStore(int directory, UniqueFd images, UniqueFd refs, UniqueFd locks)
      : directory_(directory), images_(std::move(images)), refs_(std::move(refs)), locks_(std::move(locks)) {}

  int directory_;
  UniqueFd images_;
  UniqueFd refs_;
  UniqueFd locks_;
};

}  // namespace spc
