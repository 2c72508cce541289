#include "image/layer/worker/layer_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"

namespace spc {
namespace {

constexpr int kPipeBytes = 1 << 20;
constexpr std::size_t kMostFacts = 64 << 10;

struct Pipe {
  UniqueFd read_end, write_end;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Error::from_errno(errno, "make a pipe");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// The bottom layer first.
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
      return Error(ErrorKind::internal, why + ": system call forbidden by its sandbox").hint("report this: the image may be right");
    if (signal == SIGXCPU) return Error(ErrorKind::no_space, why + ": its limit of processor time").hint("split the layer");
    Error error(ErrorKind::system, why);
    if (signal == SIGKILL) return std::move(error).hint("perhaps out of memory: increase --mem");
    return error;
  }
  return Error(ErrorKind::internal, "layer-writer exited with status " + std::to_string(status.code()));
}

}  // namespace

Result<LayerProcess> LayerProcess::start(int output_file, const LayerLimits& limits, const std::string& program,
                                         LayerPlace place) {
  const std::string path = program.empty() ? own_program("layer-writer") : program;
  auto input = SPC_TRY(make_pipe());
  auto report = SPC_TRY(make_pipe());
  std::pair<UniqueFd, UniqueFd> below;
  if (place == LayerPlace::in_image) below = SPC_TRY(socket_pair());
  (void)::fcntl(input.write_end.get(), F_SETPIPE_SZ, kPipeBytes);  // beyond the user's quota it stays 64 KiB

  std::vector<Program::Passed> descriptors{{input.read_end.get(), kLayerInput},
                                            {STDOUT_FILENO, STDOUT_FILENO},
                                            {STDERR_FILENO, STDERR_FILENO},
                                            {output_file, kLayerOutput},
                                            {report.write_end.get(), kLayerReport}};
  if (below.second) descriptors.push_back({below.second.get(), kLayerBelow});
  auto child = SPC_TRY(Child::start({.path = path,
                                     .arguments = {"layer-writer", std::to_string(limits.tar_bytes),
                                                   std::to_string(limits.image_bytes), std::to_string(limits.entries),
                                                   std::to_string(limits.workers), std::to_string(static_cast<unsigned>(limits.compression)),
                                                   std::to_string(static_cast<unsigned>(limits.format)), std::to_string(limits.merges)},
                                     .environment = std::vector<std::string>(),
                                     .descriptors = std::move(descriptors)}));
  return LayerProcess(std::move(child), std::move(input.write_end), std::move(report.read_end), std::move(below.first));
}

Result<void> LayerProcess::give_below(std::span<const int> layers) {
  const UniqueFd below = std::move(below_);
  LayersBelowQuestion question;
  SPC_TRY(receive_struct(below.get(), question));
  return send_layers(below.get(), layers);
}

Result<ConvertedLayer> LayerProcess::finish() {
  close_input();
  LayerReport report;
  std::size_t got = 0;
  while (got < sizeof report) {
    const ssize_t count = ::read(report_.get(), reinterpret_cast<char*>(&report) + got, sizeof report - got);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    got += static_cast<std::size_t>(count);
  }
  if (got == sizeof report && std::memcmp(report.magic, LayerReport::kMagic, sizeof report.magic) != 0) {
    child_.kill();
    return Error(ErrorKind::internal, "layer-writer sent an invalid report");
  }
  const ExitStatus status = child_.wait();
  if (got != sizeof report) return died(status);
  if (report.error.is_set()) return report.error.error();
  if (!status.success()) return died(status);
  return report.layer;
}

Result<FactsProcess> FactsProcess::start() {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  auto report = SPC_TRY(make_pipe());
  auto child = SPC_TRY(Child::start({.path = own_program("layer-writer"),
                                     .arguments = {"layer-writer", kLayerFacts},
                                     .environment = std::vector<std::string>(),
                                     .descriptors = {{theirs.get(), kLayerBelow}, {report.write_end.get(), kLayerReport}}}));
  return FactsProcess(std::move(child), std::move(ours), std::move(report.read_end));
}

Result<void> FactsProcess::give(std::span<const int> layers) { return send_layers(layers_.get(), layers); }

Result<std::string> FactsProcess::finish(std::chrono::milliseconds patience) {
  std::string records;
  const auto until = std::chrono::steady_clock::now() + patience;
  for (std::array<char, 4096> some{};;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd one{.fd = report_.get(), .events = POLLIN};
    if (left.count() <= 0 || ::poll(&one, 1, static_cast<int>(left.count())) == 0)
      return Error(ErrorKind::unavailable, "layer-writer takes too long");
    const ssize_t count = ::read(report_.get(), some.data(), some.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    records.append(some.data(), static_cast<std::size_t>(count));
    if (records.size() > kMostFacts) return Error(ErrorKind::internal, "layer-writer sent an invalid report");
  }
  const ExitStatus status = child_.wait();
  return status.success() ? Result<std::string>(std::move(records)) : died(status);
}

}  // namespace spc
