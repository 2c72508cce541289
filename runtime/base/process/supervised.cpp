#include "base/process/supervised.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/file.hpp"

namespace spc {
namespace {

constexpr int kMostPieces =
    256;  // of what is still to be read when it has ended: more than a pipe holds
constexpr std::size_t kPiece = 4096;

struct Pipe {
  UniqueFd out, in;
  static Result<Pipe> open() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Error::from_errno(errno, "make a pipe");
    Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return pipe;
  }
};

/// Reads what the child prints until it ends.
class Watch {
 public:
  Watch(const RunLimits& limits, const std::function<void(std::string_view)>& tell, UniqueFd output,
        UniqueFd errors)
      : limits_(limits), tell_(tell), output_(std::move(output)), errors_(std::move(errors)) {
    text_.reserve(std::min<std::size_t>(limits.output, 1 << 20) +
                  kPiece);  // growing would leave copies of a secret behind
  }

  RunEnd until_the_end(Child& child) {
    RunEnd end{.kind = wait(child.watch()), .number = 0, .output = {}};
    if (end.kind != RunEnd::Kind::exited) {
      child.kill();
    } else {
      if (limits_.group == RunLimits::Group::killed) ::kill(-child.pid(), SIGKILL);
      const ExitStatus status = child.wait();
      // Not to the end: what it has left behind, out of its group, may print for ever.
      for (int pieces = 0; pieces < kMostPieces && read_errors(); ++pieces) {
      }
      if (status.signalled()) end.kind = RunEnd::Kind::signalled;
      if (!read_output()) end.kind = RunEnd::Kind::printed_too_much;
      end.number = status.signalled() ? status.signal() : status.code();
    }
    if (!line_.empty()) say_line();
    end.output = std::move(text_);
    return end;
  }

 private:
  RunEnd::Kind wait(int child) {
    const auto limit = static_cast<std::uint64_t>(std::chrono::microseconds(limits_.time).count());
    const std::uint64_t begin = now_us();
    for (;;) {
      const std::uint64_t passed = now_us() - begin;
      if (passed >= limit) return RunEnd::Kind::timed_out;
      pollfd events[] = {
          {child, POLLIN, 0}, {output_.get(), POLLIN, 0}, {errors_.get(), POLLIN, 0}};
      const int left =
          static_cast<int>(std::min<std::uint64_t>((limit - passed) / 1000 + 1, 60'000));
      if (::poll(events, std::size(events), left) < 0) continue;
      if (events[1].revents != 0 && !read_output()) return RunEnd::Kind::printed_too_much;
      if (events[2].revents != 0) read_errors();
      if (events[0].revents != 0) return RunEnd::Kind::exited;
    }
  }

  /// False: it was too much.
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

  /// One piece: who prints without end must not keep us from looking at the clock. False: there is
  /// nothing.
  bool read_errors() {
    std::array<char, kPiece> buffer;
    const ssize_t size = ::read(errors_.get(), buffer.data(), buffer.size());
    if (size == 0) errors_.reset();
    for (ssize_t i = 0; i < size; ++i) {
      const char c = buffer[static_cast<std::size_t>(i)];
      if (c == '\n') {
        say_line();
      } else if (line_.size() < limits_.line) {
        line_ += c;
      }
    }
    return size > 0;
  }

  void say_line() {
    if (++lines_ <= limits_.lines) tell_(line_);
    if (lines_ == limits_.lines + 1) tell_("prints more, which is not shown");
    line_.clear();
  }

  const RunLimits& limits_;
  const std::function<void(std::string_view)>& tell_;
  UniqueFd output_, errors_;
  std::string text_, line_;
  int lines_ = 0;
};

}  // namespace

Result<RunEnd> run_supervised(Program program, std::string_view input, const RunLimits& limits,
                              const std::function<void(std::string_view)>& tell) {
  // A file, not a pipe: a program that reads nothing must not cost us a SIGPIPE.
  const auto in = SPC_TRY(sealed_memory_file("spank-container input", input));
  ::lseek(in.get(), 0, SEEK_SET);
  auto output = SPC_TRY(Pipe::open());
  auto errors = SPC_TRY(Pipe::open());
  program.descriptors.insert(program.descriptors.end(),
                             {{in.get(), 0}, {output.in.get(), 1}, {errors.in.get(), 2}});
  if (program.group == Program::Group::ours) program.group = Program::Group::own;
  Child child = SPC_TRY(Child::start(program));
  output.in.reset();
  errors.in.reset();
  return Watch(limits, tell, std::move(output.out), std::move(errors.out)).until_the_end(child);
}

}  // namespace spc
