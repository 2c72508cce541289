#include "launch/site/submit_check.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "protocol/submit.hpp"

namespace spc {
namespace {

constexpr std::uint64_t kPatience = 12'000'000;  // microseconds; the program itself asks registries for kSubmitSeconds
constexpr std::size_t kMostAnswer = 2000;

bool there_is_a_configuration() {
  const std::string file = SPC_CONFIG_FILE;
  return ::access(file.c_str(), F_OK) == 0 || ::access((file.substr(0, file.rfind('/')) + "/config.d").c_str(), F_OK) == 0;
}

std::vector<std::string> words_for(const LaunchRequest& request) {
  std::vector<std::string> words{SPC_TOOL, kSubmitCheck, request.image};
  words.emplace_back(request.pull ? name_of(*request.pull) : "");
  words.emplace_back(request.platform ? request.platform->str() : "");
  words.insert(words.end(), request.features.begin(), request.features.end());
  return words;
}

/// What the program prints until it ends or patience does.
std::string read_answer(int pipe) {
  std::string answer;
  const std::uint64_t end = now_us() + kPatience;
  for (;;) {
    const std::uint64_t now = now_us();
    pollfd watched{pipe, POLLIN, 0};
    if (now >= end || ::poll(&watched, 1, static_cast<int>((end - now) / 1000 + 1)) == 0) return answer;
    char bytes[512];
    const ssize_t size = ::read(pipe, bytes, sizeof bytes);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0 || answer.size() > kMostAnswer) return answer;
    answer.append(bytes, static_cast<std::size_t>(size));
  }
}

}  // namespace

Result<void> check_at_submission(const LaunchRequest& request) {
  if (!there_is_a_configuration() || ::access(SPC_TOOL, X_OK) != 0) return {};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  auto words = words_for(request);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return {};
  if (child == 0) {
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ::dup2(null, 0);
    ::dup2(theirs.get(), 1);
    ::dup2(null, 2);
    ::execve(SPC_TOOL, arguments.data(), environ);
    ::_exit(127);
  }
  theirs.reset();
  std::string answer = read_answer(ours.get());
  ::kill(child, SIGKILL);  // it has ended, or takes too long
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (answer.empty() || !answer.ends_with('\n')) return {};
  answer.pop_back();
  return Error(ErrorKind::refused, printable(answer));
}

}  // namespace spc
