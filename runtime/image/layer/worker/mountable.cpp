#include "image/layer/worker/mountable.hpp"

#include <linux/magic.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <zlib.h>

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

}  // namespace

bool reads_lz4(const std::string& root) {
  utsname system{};
  ::uname(&system);
  const std::string release = system.release;
  for (const std::string& path :
       {root + "/proc/config.gz", root + "/boot/config-" + release, root + "/lib/modules/" + release + "/config"}) {
    if (const auto text = gunzipped_file(path)) return text->find("\nCONFIG_SQUASHFS_LZ4=y\n") != std::string::npos;
  }
  return false;
}

void ask_for_erofs() {
  const auto ask = [] { return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && ::fsopen("erofs", FSOPEN_CLOEXEC) >= 0 ? 0 : 1; };
  if (auto child = Child::run(ask, "ask for erofs")) child->wait();
}

bool files_share_blocks(const char* place) {
  struct statfs status {};
  return ::statfs(place, &status) == 0 && (status.f_type == XFS_SUPER_MAGIC || status.f_type == BTRFS_SUPER_MAGIC);
}

bool maps_only_erofs(KernelVersion kernel, const std::string& filesystems, void (*ask)()) {
  if (kernel < kMapsErofs || kernel >= kMapsSquashfs) return false;
  const auto is_there = [&] {
    const auto text = gunzipped_file(filesystems);
    return text && text->find("\terofs\n") != std::string::npos;
  };
  if (is_there()) return true;
  ask();
  return is_there();
}

}  // namespace spc
