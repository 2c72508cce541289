#include "base/log.hpp"

#include <sys/uio.h>
#include <unistd.h>

namespace spc {

void StderrLog::write(LogLevel level, std::string_view line) noexcept {
  if (level == LogLevel::debug) return;
  const std::string_view prefix = level == LogLevel::warning ? "warning: " : "";
  // One writev keeps lines of several processes separate.
  const iovec parts[] = {{const_cast<char*>(prefix.data()), prefix.size()},
                         {const_cast<char*>(line.data()), line.size()},
                         {const_cast<char*>("\n"), 1}};
  [[maybe_unused]] const auto written = ::writev(STDERR_FILENO, parts, 3);
}

}  // namespace spc
