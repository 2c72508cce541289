#include "base/process/supervised.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/file.hpp"

namespace spc {

// --- supervised ---

namespace {

// Limit of pieces read after the child has ended: more than a pipe holds.
constexpr int kMostPieces = 256;
constexpr std::size_t kPiece = 4096;

/// Reads the child's output until it ends.
class Watch {
 public:
  Watch(const RunLimits& limits, const TellLine& tell, const PolledBeside& beside, UniqueFd& output,
        UniqueFd& lines)
      : limits_(limits), tell_(tell), beside_(beside), output_(output), errors_(lines) {
    for (const int file : {output.get(), lines.get()}) ::fcntl(file, F_SETFL, O_NONBLOCK);
    text_.reserve(std::min<std::size_t>(limits.output, 1 << 20) +
                  kPiece);  // growing would leave copies of a secret in memory
  }

  ProcessEnd until_the_end(Child& child) {
    ProcessEnd end{.kind = wait(child.watch()), .number = SIGKILL, .output = {}};
    if (end.kind != Kind::exited) {
      child.kill();
    } else {
      if (limits_.group == RunLimits::Group::killed) ::kill(-child.pid(), SIGKILL);
      const ExitStatus status = child.wait();
      if (status.signalled()) end.kind = Kind::signalled;
      if (!read_output()) end.kind = Kind::printed_too_much;
      end.number = status.signalled() ? status.signal() : status.code();
    }
    // Do not read to the end of file: processes that the child has left outside its group may print
    // forever.
    for (int pieces = 0; pieces < kMostPieces && read_errors(); ++pieces) {
    }
    if (!line_.empty()) say_line();
    end.output = std::move(text_);
    return end;
  }

 private:
  using Kind = ProcessEnd::Kind;

  Kind wait(int child) {
    const auto limit = static_cast<std::uint64_t>(std::chrono::microseconds(limits_.time).count());
    const std::uint64_t begin = now_us();
    for (;;) {
      const std::uint64_t passed = now_us() - begin;
      if (limit != 0 && passed >= limit) return Kind::timed_out;
      std::vector<pollfd> events = {
          {child, POLLIN, 0}, {output_.get(), POLLIN, 0}, {errors_.get(), POLLIN, 0}};
      if (beside_.add) beside_.add(events);
      const std::uint64_t left = limit == 0 ? 60'000 : (limit - passed) / 1000 + 1;
      if (::poll(events.data(), events.size(),
                 static_cast<int>(std::min<std::uint64_t>(left, 60'000))) < 0)
        continue;
      if (beside_.ready && !beside_.ready(std::span(events).subspan(3))) return Kind::signalled;
      if (events[1].revents != 0 && !read_output()) return Kind::printed_too_much;
      if (events[2].revents != 0) read_errors();
      if (events[0].revents != 0) return Kind::exited;
    }
  }

  /// Returns false if the output exceeds the limit.
  bool read_output() {
    std::array<char, kPiece> buffer;
    for (;;) {
      const ssize_t size = ::read(output_.get(), buffer.data(), buffer.size());
      if (size == 0) output_.reset();
      if (size <= 0) return true;
      text_.append(buffer.data(), static_cast<std::size_t>(size));
      ::explicit_bzero(buffer.data(), static_cast<std::size_t>(size));
      if (text_.size() > limits_.output) return false;
    }
  }

  /// Reads one piece, so that a program that prints without end cannot prevent the check of the
  /// time limit. Returns false if there is none.
  bool read_errors() {
    std::array<char, kPiece> buffer;
    const ssize_t size = ::read(errors_.get(), buffer.data(), buffer.size());
    if (size == 0) errors_.reset();
    for (ssize_t i = 0; i < size; ++i) {
      const char c = buffer[static_cast<std::size_t>(i)];
      if (c == '\n' || (limits_.splits && line_.size() == limits_.line)) say_line();
      if (c != '\n' && line_.size() < limits_.line) line_ += c;
    }
    return size > 0;
  }

  void say_line() {
    if (++lines_ <= limits_.lines) tell_(line_);
    if (lines_ == limits_.lines + 1) tell_("prints more, which is not shown");
    line_.clear();
  }

  const RunLimits& limits_;
  const TellLine& tell_;
  const PolledBeside& beside_;
  UniqueFd &output_, &errors_;
  std::string text_, line_;
  int lines_ = 0;
};

}  // namespace

std::string ProcessEnd::reason(const RunLimits& limits, std::string_view last_lines) const {
  using std::chrono::seconds;
  std::string why;
  switch (kind) {
    case Kind::exited: why = "exited with status " + std::to_string(number); break;
    case Kind::signalled: why = "was killed by signal " + std::to_string(number); break;
    case Kind::timed_out:
      why = "did not finish within " +
            std::to_string(std::chrono::duration_cast<seconds>(limits.time).count()) + " s";
      break;
    case Kind::printed_too_much:
      why = "printed more than " + std::to_string(limits.output >> 20) + " MiB";
      break;
  }
  return last_lines.empty() ? why : why + "; last output: " + in_quotes(last_lines);
}

ProcessEnd supervise(Child& child, UniqueFd& output, UniqueFd& lines, const RunLimits& limits,
                     const TellLine& tell, const PolledBeside& beside) {
  return Watch(limits, tell, beside, output, lines).until_the_end(child);
}

Result<ProcessEnd> run_supervised(Program program, std::string_view input, const RunLimits& limits,
                                  const TellLine& tell) {
  // A file, not a pipe: a program that does not read its input must not cause a SIGPIPE here.
  const auto in = SPC_TRY(sealed_memory_file("spank-container input", input));
  ::lseek(in.get(), 0, SEEK_SET);
  auto [output, output_end] = SPC_TRY(make_pipe());
  auto [errors, errors_end] = SPC_TRY(make_pipe());
  program.descriptors.insert(program.descriptors.end(),
                             {{in.get(), 0}, {output_end.get(), 1}, {errors_end.get(), 2}});
  if (program.group == Program::Group::ours) program.group = Program::Group::own;
  Child child = SPC_TRY(Child::start(program));
  output_end.reset();
  errors_end.reset();
  return supervise(child, output, errors, limits, tell);
}

// --- bounded work ---

namespace {

/// Returns everything up to the end of the pipe, empty if that does not arrive in time.
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
  child->release();  // the kernel may keep it alive, so it is not awaited
  return std::nullopt;
}

// --- descendants ---

namespace {

/// Returns the children of the calling process; empty if /proc is that of another PID namespace.
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
