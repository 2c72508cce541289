// Processes of `layer-writer` as seen by `import`, and the image formats that the kernel supports.

#include "image/pull/layer_process.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"

namespace spc {

// --- kernel support ---

namespace {

struct CloseGzip {
  void operator()(gzFile file) const { ::gzclose(file); }
};

/// Reads a file, decompressing it if it is gzipped. Empty if it cannot be read.
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

/// Returns whether the running kernel's configuration has this option. False if the configuration
/// is not known.
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

/// Returns the number of possible processors, such as 4 for "0-3".
std::uint64_t possible_processors(const std::string& root) {
  const auto text = gunzipped_file(root + "/sys/devices/system/cpu/possible");
  const std::size_t last = text ? text->find_last_of(",-") : std::string::npos;
  return last == std::string::npos ? 1 : std::strtoull(text->c_str() + last + 1, nullptr, 10) + 1;
}

}  // namespace

bool reads_lz4(const std::string& root) { return is_configured(root, "LZ4"); }

std::uint64_t memory_of_squashfs(LayerCompression compression, const std::string& root) {
  constexpr std::uint64_t kBlock = 128 << 10;
  // Buffers in fs/squashfs: three fragments, eight metadata blocks and one data block, plus an
  // input and an output buffer. zstd also keeps a window and tables.
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

bool is_on_local_disk(const std::string& directory) {
  struct stat status {};
  return ::stat(directory.c_str(), &status) == 0 &&
         ::access(
             formatted("/sys/dev/block/{}:{}", major(status.st_dev), minor(status.st_dev)).c_str(),
             F_OK) == 0;
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

// --- image facts ---

namespace {

/// Longest wait after the rest of the image is complete. Sufficient on a busy processor, but not
/// for an image with very many files.
constexpr std::chrono::milliseconds kFactsPatience{1000};

}  // namespace

void ImageFacts::prepare() {
  if (prepared_) return;
  prepared_ = true;
  if (auto ends = start_()) process_.emplace(*std::move(ends));
}

void ImageFacts::read(std::span<const int> layers) {
  prepare();
  read_ = true;
  if (process_ && !process_->give(layers)) process_.reset();
}

std::string ImageFacts::records() {
  auto found =
      process_ && read_ ? process_->finish(kFactsPatience) : Result<std::string>(std::string());
  process_.reset();
  return found ? *std::move(found) : std::string();
}

// --- layer process ---

namespace {

constexpr std::size_t kMostFacts = 64 << 10;

/// Sends the descriptors, bottom layer first.
Result<void> send_layers(int socket, std::span<const int> layers) {
  do {
    const auto some = layers.first(std::min(layers.size(), kMaxDescriptorsPerMessage));
    layers = layers.subspan(some.size());
    SPC_TRY(send_struct(socket, LayersBelowAnswer{.more = layers.empty() ? 0U : 1U}, some));
  } while (!layers.empty());
  return {};
}

Error died(const ExitStatus& status) {
  if (status.signalled()) {
    const int signal = status.signal();
    std::string why = "layer-writer was killed by signal " + std::to_string(signal);
    if (const char* name = ::sigdescr_np(signal)) why += formatted(" ({})", name);
    if (signal == SIGSYS)
      return Error(ErrorKind::internal, why + ": system call forbidden by its sandbox")
          .hint("report this with the image's name");
    if (signal == SIGXCPU)
      return Error(ErrorKind::no_space, why + ": its limit of processor time")
          .hint("split the layer");
    Error error(ErrorKind::system, why);
    if (signal == SIGKILL) return std::move(error).hint("increase --mem");
    return error;
  }
  return Error(ErrorKind::internal,
               "layer-writer exited with status " + std::to_string(status.code()));
}

}  // namespace

Result<LayerProcess> LayerProcess::start(int output_file, const LayerLimits& limits,
                                         const std::string& program) {
  auto [input, input_end] = SPC_TRY(make_pipe());
  auto [report_end, report] = SPC_TRY(make_pipe());
  (void)::fcntl(input_end.get(), F_SETPIPE_SZ,
                kLayerPipe);  // above the user's quota it stays 64 KiB
  auto child = std::make_shared<Child>(
      SPC_TRY(Child::start({.path = program.empty() ? own_program("layer-writer") : program,
                            .arguments = {"layer-writer", order_of(limits)},
                            .environment = std::vector<std::string>(),
                            .descriptors = {{input.get(), kLayerInput},
                                            {STDOUT_FILENO, STDOUT_FILENO},
                                            {STDERR_FILENO, STDERR_FILENO},
                                            {output_file, kLayerOutput},
                                            {report.get(), kLayerReport}}})));
  return LayerProcess({.input = std::move(input_end),
                       .report = std::move(report_end),
                       .below = {},
                       .wait = [child] { return Result<ExitStatus>(child->wait()); }});
}

Result<void> LayerProcess::give_below(std::span<const int> layers) {
  const UniqueFd below = std::move(ends_.below);
  LayersBelowQuestion question;
  SPC_TRY(receive_struct(below.get(), question));
  return send_layers(below.get(), layers);
}

Result<ConvertedLayer> LayerProcess::finish() {
  close_input();
  LayerReport report;
  std::size_t got = 0;
  while (got < sizeof report) {
    const ssize_t count =
        ::read(ends_.report.get(), reinterpret_cast<char*>(&report) + got, sizeof report - got);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    got += static_cast<std::size_t>(count);
  }
  if (got == sizeof report &&
      std::memcmp(report.magic, LayerReport::kMagic, sizeof report.magic) != 0)
    return Error(ErrorKind::internal, "layer-writer sent an invalid report");
  const ExitStatus status = SPC_TRY(ends_.wait());
  if (got != sizeof report) return died(status);
  if (report.error.is_set()) return report.error.error();
  if (!status.success()) return died(status);
  return report.layer;
}

Result<void> FactsProcess::give(std::span<const int> layers) {
  return send_layers(ends_.below.get(), layers);
}

Result<std::string> FactsProcess::finish(std::chrono::milliseconds patience) {
  std::string records;
  const auto until = std::chrono::steady_clock::now() + patience;
  for (std::vector<char> some(kMostFacts + 1);;) {  // the whole of one message at once
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    pollfd one{.fd = ends_.report.get(), .events = POLLIN};
    if (left.count() <= 0 || ::poll(&one, 1, static_cast<int>(left.count())) == 0)
      return Error(ErrorKind::unavailable, "layer-writer takes too long");
    const ssize_t count = ::read(ends_.report.get(), some.data(), some.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    records.append(some.data(), static_cast<std::size_t>(count));
    if (records.size() > kMostFacts)
      return Error(ErrorKind::internal, "layer-writer sent an invalid report");
  }
  const ExitStatus status = SPC_TRY(ends_.wait());
  return status.success() ? Result<std::string>(std::move(records)) : died(status);
}

}  // namespace spc
