#include "image/layer/worker/layer_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/process/pipe.hpp"
#include "base/socket.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostFacts = 64 << 10;

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
      return Error(ErrorKind::internal, why + ": system call forbidden by its sandbox")
          .hint("report this: the image may be right");
    if (signal == SIGXCPU)
      return Error(ErrorKind::no_space, why + ": its limit of processor time")
          .hint("split the layer");
    Error error(ErrorKind::system, why);
    if (signal == SIGKILL) return std::move(error).hint("perhaps out of memory: increase --mem");
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
                kLayerPipe);  // beyond the user's quota it stays 64 KiB
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
  for (std::vector<char> some(kMostFacts + 1);;) {  // all of a message at once
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
