#include "image/layer/worker/mountable.hpp"

#include <linux/magic.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <zlib.h>

#include <cstdlib>
#include <memory>
#include <optional>

#include "base/process/child.hpp"

namespace spc {
namespace {

struct CloseGzip {
  void operator()(gzFile file) const { ::gzclose(file); }
};

/// Nothing if it cannot be read. What is not compressed is read as it is.
std::optional<std::string> gunzipped_file(const std::string& path) {
  constexpr unsigned kMost = 4U << 20;
  const std::unique_ptr<gzFile_s, CloseGzip> file(::gzopen(path.c_str(), "re"));
  if (!file) return std::nullopt;
  std::string text(kMost, '\0');
  const int length = ::gzread(file.get(), text.data(), kMost);
  if (length < 0) return std::nullopt;
  text.resize(static_cast<std::size_t>(length));
  return text;
}

/// Whether the configuration of the running kernel has this option; false if that is not known.
bool is_configured(const std::string& root, const std::string& option) {
  utsname system{};
  ::uname(&system);
  const std::string release = system.release;
  for (const std::string& path : {root + "/proc/config.gz", root + "/boot/config-" + release,
                                  root + "/lib/modules/" + release + "/config"}) {
    if (const auto text = gunzipped_file(path))
      return text->find("\nCONFIG_SQUASHFS_" + option + "=y\n") != std::string::npos;
  }
  return false;
}

/// Processors that the kernel has room for, such as 4 of "0-3".
std::uint64_t possible_processors(const std::string& root) {
  const auto text = gunzipped_file(root + "/sys/devices/system/cpu/possible");
  const std::size_t last = text ? text->find_last_of(",-") : std::string::npos;
  return last == std::string::npos ? 1 : std::strtoull(text->c_str() + last + 1, nullptr, 10) + 1;
}

}  // namespace

bool reads_lz4(const std::string& root) { return is_configured(root, "LZ4"); }

std::uint64_t memory_of_squashfs(LayerCompression compression, const std::string& root) {
  constexpr std::uint64_t kBlock = 128 << 10;
  // fs/squashfs: three fragments, eight blocks of metadata and a block that is read, then a buffer
  // for input and one for output; zstd keeps a window and tables, too.
  constexpr std::uint64_t kCaches = 4 * kBlock, kBlockOfData = kBlock;
  const std::uint64_t decompressor = compression == LayerCompression::lz4 ? 2 * kBlock : 5 * kBlock;
  const bool has_one =
      is_configured(root, "DECOMP_SINGLE") && !is_configured(root, "CHOICE_DECOMP_BY_MOUNT");
  return kCaches + (kBlockOfData + decompressor) * (has_one ? 1 : possible_processors(root));
}

void ask_for_erofs() {
  const auto ask = [] {
    return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && ::fsopen("erofs", FSOPEN_CLOEXEC) >= 0
               ? 0
               : 1;
  };
  if (auto child = Child::run(ask, "ask for erofs")) child->wait();
}

bool files_share_blocks(const char* place) {
  struct statfs status {};
  return ::statfs(place, &status) == 0 &&
         (status.f_type == XFS_SUPER_MAGIC || status.f_type == BTRFS_SUPER_MAGIC);
}

namespace {

bool has_erofs(const std::string& filesystems, void (*ask)()) {
  const auto is_there = [&] {
    const auto text = gunzipped_file(filesystems);
    return text && text->find("\terofs\n") != std::string::npos;
  };
  if (is_there()) return true;
  ask();
  return is_there();
}

}  // namespace

bool maps_only_erofs(KernelVersion kernel, const std::string& filesystems, void (*ask)()) {
  return kernel >= kMapsErofs && kernel < kMapsSquashfs && has_erofs(filesystems, ask);
}

bool saves_memory_by_erofs(std::uint64_t memory, KernelVersion kernel,
                           const std::string& filesystems, void (*ask)()) {
  constexpr std::uint64_t kMuch = 8 << 20;
  return kernel >= kMapsErofs && memory > kMuch && has_erofs(filesystems, ask);
}

}  // namespace spc
