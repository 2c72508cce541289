#include "base/process/descendants.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.hpp"

namespace spc {
namespace {

/// The processes whose parent the calling one is; not to be had where /proc is that of other
/// process numbers.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  char self[32] = {};
  if (::readlink("/proc/self", self, sizeof self - 1) <= 0 || std::atoi(self) != ::getpid())
    return found;
  const std::string path = "/proc/self/task/" + std::string(self) + "/children";
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text(64 * 1024, '\0');
  const ssize_t size = ::read(file, text.data(), text.size() - 1);
  ::close(file);
  char* at = text.data();
  for (char* end = at; size > 0; at = end) {
    const long pid = std::strtol(at, &end, 10);
    if (end == at) break;
    found.push_back(static_cast<pid_t>(pid));
  }
  return found;
}

}  // namespace

void end_descendants(pid_t first) {
  constexpr std::uint64_t kLongEnough = 5'000'000;
  const std::uint64_t begin = now_us();
  if (first > 0) ::kill(-first, SIGKILL);
  while (now_us() - begin < kLongEnough) {
    for (const pid_t child : children()) ::kill(child, SIGKILL);
    pid_t reaped = 0;
    while ((reaped = ::waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    if (reaped < 0 && errno == ECHILD) return;
    ::poll(nullptr, 0, 1);
  }
}

}  // namespace spc
