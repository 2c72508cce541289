#include "tool/doctor/bounded.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "base/file.hpp"
#include "base/process/child.hpp"

namespace spc::tool {
namespace {

/// Everything up to the end of the pipe; nothing if that does not come in time.
std::optional<std::string> read_before(std::chrono::steady_clock::time_point end, int pipe) {
  constexpr std::size_t kMostAnswer = 1 << 20;
  std::string text;
  std::array<char, 4096> buffer;
  while (text.size() < kMostAnswer) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                          end - std::chrono::steady_clock::now())
                          .count();
    pollfd waited{.fd = pipe, .events = POLLIN, .revents = 0};
    const int ready = left <= 0 ? 0 : ::poll(&waited, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    const ssize_t got = ::read(pipe, buffer.data(), buffer.size());
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> answer_before(std::chrono::steady_clock::time_point end,
                                         const std::function<std::string()>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  auto child =
      Child::run([&] { return write_all(theirs.get(), work()) ? 0 : 1; }, "look at the node");
  theirs.reset();
  if (!child) return std::nullopt;
  auto answer = read_before(end, ours.get());
  if (answer) return child->wait().success() ? answer : std::nullopt;
  ::kill(child->pid(), SIGKILL);
  child->release();  // the kernel may not let it end, and it is not waited for
  return std::nullopt;
}

}  // namespace spc::tool
