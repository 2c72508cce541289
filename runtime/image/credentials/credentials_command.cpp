#include "image/credentials/credentials_command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/file.hpp"
#include "base/unique_fd.hpp"

namespace spc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxOutput = 64 << 10;
constexpr std::size_t kMaxComplaints = 200;

Result<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/bin:/bin";
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string directory(rest.substr(0, colon));
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
    if (!directory.starts_with('/')) continue;  // the work directory is not a place for programs
    std::string candidate = directory + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return std::move(Error(ErrorKind::not_found, "run " + in_quotes(name) + ": not found in PATH"))
      .hint("install it on this node, or add its directory to the job's PATH");
}

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
  static Result<Pipe> create() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "create a pipe");
    return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
};

/// The program while it runs; one that is left behind is killed with all that it started.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid), watch_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);
    wait();
  }
  /// A descriptor that is readable once it has ended.
  [[nodiscard]] int watch() const { return watch_.get(); }
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
  UniqueFd watch_;
};

Result<pid_t> spawn(const std::string& program, const std::vector<std::string>& command, int in, int out, int err) {
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (const auto& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, in, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, 1);
  ::posix_spawn_file_actions_adddup2(&actions, err, 2);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  sigset_t all;
  sigset_t none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Error::from_errno(error, "run " + in_quotes(program));
  return pid;
}

/// Moves what there is from a descriptor that does not block; false at its end.
bool drain(int fd, std::string& into, std::size_t limit) {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0) return false;
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN;
    }
    into.append(buffer.data(), static_cast<std::size_t>(got));
    ::explicit_bzero(buffer.data(), static_cast<std::size_t>(got));
    if (into.size() > limit) return false;
  }
}

std::string complaints_of(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text.size() > kMaxComplaints) text.erase(0, text.size() - kMaxComplaints);
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return printable(text);
}

}  // namespace

Result<CommandOutput> run_command(const std::vector<std::string>& command, std::string_view input, std::chrono::seconds limit) {
  const auto program = SPC_TRY(find_program(command.front()));
  // A file, not a pipe: a program that reads nothing must not cost us a SIGPIPE.
  const auto in = SPC_TRY(sealed_memory_file("input", input));
  ::lseek(in.get(), 0, SEEK_SET);
  auto out = SPC_TRY(Pipe::create());
  auto err = SPC_TRY(Pipe::create());
  Child child(SPC_TRY(spawn(program, command, in.get(), out.write_end.get(), err.write_end.get())));
  out.write_end.reset();
  err.write_end.reset();
  for (const int fd : {out.read_end.get(), err.read_end.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);

  const auto until = Clock::now() + limit;
  std::string output;
  std::string errors;
  output.reserve(kMaxOutput + 4096);  // growing would leave copies of a secret behind
  const auto fail = [&](const std::string& why) {
    const SecretText wiped(std::move(output));
    return Error(ErrorKind::unavailable, "run " + in_quotes(program) + ": " + why);
  };
  for (;;) {
    // Its end counts, not that of its output: an agent that it leaves behind may keep the pipes open.
    pollfd watched[] = {{child.watch(), POLLIN, 0}, {out.read_end.get(), POLLIN, 0}, {err.read_end.get(), POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return fail("did not end within " + std::to_string(limit.count()) + " s");
    if (::poll(watched, std::size(watched), static_cast<int>(left)) < 0 && errno != EINTR) {
      return Error::from_errno(errno, "wait for " + in_quotes(program));
    }
    if (out.read_end && !drain(out.read_end.get(), output, kMaxOutput)) out.read_end.reset();
    if (output.size() > kMaxOutput) return fail("wrote more than 64 KiB");
    if (err.read_end && !drain(err.read_end.get(), errors, kMaxOutput)) err.read_end.reset();
    if (watched[0].revents == 0) continue;
    if (out.read_end) drain(out.read_end.get(), output, kMaxOutput);
    CommandOutput result;
    result.status = child.wait();
    result.out = SecretText(std::move(output));
    result.complaints = complaints_of(std::move(errors));
    return result;
  }
}

}  // namespace spc
