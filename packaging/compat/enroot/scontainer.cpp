#include "scontainer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "base/process/child.hpp"
#include "base/unique_fd.hpp"

namespace spc::enroot {
namespace {

/// It is installed beside us.
std::string program() {
  std::array<char, PATH_MAX> self{};
  const ssize_t size = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  const std::string path(self.data(), size < 0 ? 0U : static_cast<std::size_t>(size));
  return path.substr(0, path.rfind('/') + 1) + "scontainer";
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const auto& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

std::vector<std::string> command(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{"scontainer"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

Error become(const std::vector<std::string>& arguments, char* const* environment) {
  const std::string path = program();
  const auto words = command(arguments);
  ::execve(path.c_str(), pointers(words).data(), environment);
  return Error::from_errno(errno, "execute " + in_quotes(path));
}

}  // namespace

Error become_scontainer(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& environment) {
  return become(arguments, pointers(environment).data());
}

Error become_scontainer(const std::vector<std::string>& arguments) {
  return become(arguments, environ);
}

Result<std::string> output_of_scontainer(const std::vector<std::string>& arguments) {
  const std::string path = program();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Error::from_errno(errno, "make a pipe");
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  auto child = SPC_TRY(Child::start(
      {.path = path,
       .arguments = command(arguments),
       .descriptors = {{writing.get(), STDOUT_FILENO}, {STDERR_FILENO, STDERR_FILENO}}}));
  writing.reset();
  std::string text;
  std::array<char, 4096> piece{};
  for (;;) {
    const ssize_t got = ::read(reading.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  if (!child.wait().success()) return Error(ErrorKind::unavailable, "");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace spc::enroot
