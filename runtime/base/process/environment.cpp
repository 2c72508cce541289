#include "base/process/environment.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "base/clock.hpp"
#include "base/file.hpp"

namespace spc {
namespace {

Result<std::string> text_of(pid_t process, const char* file) {
  constexpr std::size_t kMost = 4 << 20;
  const std::string path = "/proc/" + std::to_string(process) + "/" + file;
  const UniqueFd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened) return Error::from_errno(errno, "open \"" + path + "\"");
  return read_file(opened.get(), kMost);
}

/// Returns whether env_start and env_end, fields 50 and 51 of `stat` (proc(5)), are 0: the new
/// memory of an execve has no variables yet. The name, field 2, may contain blanks and parentheses.
/// A process that has ended has no memory either.
bool has_no_variables(pid_t process) {
  const auto text = text_of(process, "stat");
  const std::size_t name_end = text ? text->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return true;
  std::istringstream fields(text->substr(name_end + 1));
  std::string state, start, end;
  fields >> state;
  for (int number = 4; number <= 50; ++number) fields >> start;
  fields >> end;
  return !fields || state == "Z" || state == "X" || (start == end && end != "0");
}

}  // namespace

Result<std::vector<std::string>> environment_of_process(pid_t process) {
  constexpr std::uint64_t kLongEnough = 5'000'000;
  const std::uint64_t began = now_us();
  auto text = SPC_TRY(text_of(process, "environ"));
  while (text.empty() && !has_no_variables(process) && now_us() - began < kLongEnough) {
    ::poll(nullptr, 0, 1);
    text = SPC_TRY(text_of(process, "environ"));
  }
  std::vector<std::string> variables;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    variables.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return variables;
}

}  // namespace spc
