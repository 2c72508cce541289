#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// Opens whatever of 0, 1 and 2 is closed, as cron and daemons leave it. To be called first:
/// descriptors opened later would be taken for input and output.
inline void open_closed_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

/// The end that is read, and the one that is written.
inline Result<std::pair<UniqueFd, UniqueFd>> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "create a pipe");
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

/// All that comes until nobody can write any more, at most `limit` bytes of it.
inline std::string read_pipe(int fd, std::size_t limit) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    if (text.size() < limit) text.append(buffer, static_cast<std::size_t>(got));
  }
}

}  // namespace spc
