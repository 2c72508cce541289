#include "tool/containers/detached.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/format.hpp"
#include "base/process/child.hpp"
#include "launch/task/image_files.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- supervise ---

namespace {

/// Returns the signals passed on to the child. Stopping and continuing are left to the terminal,
/// which signals both processes.
sigset_t passed_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number :
       {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM, SIGPIPE, SIGCHLD}) {
    ::sigaddset(&set, number);
  }
  return set;
}

/// Returns errno of the failed execution: the most specific one met along PATH.
int execute_one(const std::vector<std::string>& command, const std::string& path,
                char* const* environment) {
  std::vector<char*> arguments;
  for (const auto& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  if (command[0].find('/') != std::string::npos) {
    ::execve(command[0].c_str(), arguments.data(), environment);
    return errno;
  }
  int failed = ENOENT;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    const std::string directory = path.substr(at, end - at);
    at = end + 1;
    const std::string program = (directory.empty() ? "." : directory) + "/" + command[0];
    ::execve(program.c_str(), arguments.data(), environment);
    if (errno != ENOENT && errno != ENOTDIR) failed = errno;
    if (failed != ENOENT && failed != EACCES) return failed;
  }
  return failed;
}

}  // namespace

Result<int> supervise(const std::function<int()>& child,
                      const std::function<void(pid_t)>& started) {
  const sigset_t watched = passed_signals();
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &watched, &before);
  const auto begin = [&] {
    ::signal(SIGPIPE, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return child();
  };
  auto process = SPC_TRY(Child::run(begin, "start the command"));
  const pid_t pid = process.pid();
  started(pid);
  for (;;) {
    siginfo_t info{};
    const int number = ::sigwaitinfo(&watched, &info);
    if (number < 0) continue;
    if (number != SIGCHLD) {
      // Signals from the terminal reach the whole process group, the child included.
      if (info.si_code != SI_KERNEL) ::kill(pid, number);
      continue;
    }
    if (const auto status = process.try_wait()) return status->code();
  }
}

int execute(const std::vector<std::vector<std::string>>& alternatives,
            const std::map<std::string, std::string>& environment, std::string_view image) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> pointers;
  for (auto& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  const auto given_path = environment.find("PATH");
  const std::string path = given_path == environment.end() ? "/usr/bin:/bin" : given_path->second;
  int failed = ENOENT;
  for (const auto& command : alternatives) {
    failed = execute_one(command, path, pointers.data());
    if (failed != ENOENT) break;
  }
  const std::string what = formatted("execute {}: ", in_quotes(alternatives.back()[0]));
  const std::string missing = why_missing(alternatives.back()[0], path, image);
  if (!missing.empty()) {
    report_error(missing);
  } else if (failed == ENOEXEC) {
    report_error(
        what +
        "not an executable for this machine (hint: a script needs a first line like #!/bin/sh)");
  } else {
    report_error(
        Error::from_errno(failed, "execute " + in_quotes(alternatives.back()[0])).message());
  }
  return failed == ENOENT || failed == ENOTDIR ? kNoCommand : kCannotExecute;
}

// --- detached ---

void Detached::let_go() {
  line_.reset();
  take_output();
}

void Detached::take_output() const {
  ::dup2(output_.get(), STDOUT_FILENO);
  ::dup2(output_.get(), STDERR_FILENO);
}

void Detached::failed() const {
  if (line_) [[maybe_unused]]
    const ssize_t sent = ::write(line_.get(), "x", 1);
}

Result<int> Detached::run(const std::string& output, const std::function<int(Detached&)>& body) {
  auto ends = SPC_TRY(make_pipe());
  UniqueFd& reading = ends.first;
  Detached detached;
  detached.line_ = std::move(ends.second);
  detached.output_ =
      UniqueFd(::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!detached.output_) return Error::from_errno(errno, "open " + in_quotes(output));
  const auto work = [&] {
    reading.reset();
    ::setsid();
    const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ::dup2(nothing.get(), STDIN_FILENO);
    const int status = body(detached);
    if (status != 0) detached.failed();
    return status;
  };
  auto child = SPC_TRY(Child::run(work, "run it in the background", 0));
  detached.line_.reset();
  char mark = 0;
  ssize_t got = 0;
  do got = ::read(reading.get(), &mark, 1);
  while (got < 0 && errno == EINTR);
  if (got == 1) return child.wait().code();
  child.release();
  return 0;
}

}  // namespace spc::tool
