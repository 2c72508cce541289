#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/clock.hpp"
#include "base/file.hpp"
#include "base/process/child.hpp"
#include "base/process/supervised.hpp"
#include "base/socket.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

Program shell(const std::string& script) {
  return {.path = "/bin/sh", .arguments = {"sh", "-c", script}, .descriptors = {}};
}

struct Ran {
  ProcessEnd end;
  std::vector<std::string> lines;
};

Ran ran(Program program, std::string_view input = "",
        RunLimits limits = {.time = std::chrono::seconds(20), .output = 100'000}) {
  Ran result;
  auto end = run_supervised(std::move(program), input, limits,
                            [&](std::string_view line) { result.lines.emplace_back(line); });
  REQUIRE(end);
  result.end = *std::move(end);
  return result;
}

bool never() { return false; }
bool always() { return true; }

}  // namespace

TEST_CASE("child_program_that_cannot_execute_fails_the_start") {
  for (bool (*prepare)() : {static_cast<bool (*)()>(nullptr), always}) {
    Program program{.path = "/nonexistent", .arguments = {"x"}, .descriptors = {}};
    if (prepare != nullptr) program.prepare = prepare;
    const auto child = Child::start(program);
    REQUIRE_FALSE(child);
    CHECK(child.error().sys_errno() == ENOENT);
    CHECK(child.error().message() == "execute \"/nonexistent\": no such file or directory");
  }
  Program refused = shell("exit 0");
  refused.prepare = [] {
    errno = EACCES;
    return false;
  };
  CHECK(Child::start(refused).error().sys_errno() == EACCES);
  refused.prepare = never;
  CHECK(Child::start(refused).error().sys_errno() == EPERM);
  refused = shell("exit 0");
  refused.directory = "/nonexistent";
  CHECK(Child::start(refused).error().sys_errno() == ENOENT);
  CHECK(::waitpid(-1, nullptr, 0) < 0);  // no child is left to be awaited
}

TEST_CASE("child_has_only_given_descriptors") {
  const UniqueFd mine(::open("/", O_PATH));  // not close-on-exec
  const auto memory = sealed_memory_file("test", "passed").value();
  Program program =
      shell("ls -l /proc/self/fd | sed -n 's/.* \\([0-9]*\\) -> /\\1 /p'; cat /proc/self/fd/5");
  program.descriptors = {{memory.get(), 5}};
  const auto listed = ran(std::move(program)).end.output;
  CHECK(listed.find("\n5 /memfd:test") != std::string::npos);
  CHECK(listed.find("passed") != std::string::npos);
  CHECK(listed.find(" /\n") == std::string::npos);
  auto child =
      Child::start(
          shell("test /dev/null -ef /proc/self/fd/0 && test /dev/null -ef /proc/self/fd/2"))
          .value();
  CHECK(child.wait().success());
}

TEST_CASE("child_descriptors_are_swapped_safely") {
  const auto one = sealed_memory_file("one", "one").value();
  const auto two = sealed_memory_file("two", "two").value();
  Program program = shell("cat /proc/self/fd/" + std::to_string(one.get()) + " /proc/self/fd/" +
                          std::to_string(two.get()));
  program.descriptors = {{one.get(), two.get()}, {two.get(), one.get()}};
  CHECK(ran(std::move(program)).end.output == "twoone");
}

TEST_CASE("child_gets_environment_directory_umask_and_signals") {
  Program program = shell("pwd; umask; echo $A; trap | cat; kill -PIPE $$; echo alive");
  program.environment = {"A=b", "PATH=/usr/bin:/bin"};
  program.directory = "/usr";
  program.umask = 027;
  ::signal(SIGPIPE, SIG_IGN);
  CHECK(ran(program).end.output == "/usr\n0027\nb\nalive\n");
  program.signals = Program::Signals::defaults;
  const auto killed = ran(program);
  ::signal(SIGPIPE, SIG_DFL);
  CHECK(killed.end.kind == ProcessEnd::Kind::signalled);
  CHECK(killed.end.number == SIGPIPE);
  ::setenv("OF_OURS", "1", 1);
  CHECK(ran(shell("echo $OF_OURS")).end.output == "1\n");
}

TEST_CASE("child_group_is_killed_when_dropped") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  Program program = shell("sleep 100 & sleep 100");
  program.descriptors = {{writing.get(), 1}};
  program.group = Program::Group::own;
  {
    auto child = Child::start(program).value();
    CHECK(child.running());
    CHECK_FALSE(child.try_wait());
    writing.reset();
  }
  char byte = 0;
  CHECK(::read(reading.get(), &byte, 1) == 0);  // the background process has closed it as well
}

TEST_CASE("child_function_runs_in_forked_process") {
  int number = 1;
  auto child = Child::run([&] { return ++number; }, "test").value();
  CHECK(child.wait().code() == 2);
  CHECK(number == 1);
  auto killed = Child::run([] { return ::raise(SIGKILL); }, "test").value();
  const auto status = killed.wait();
  CHECK(status.signalled());
  CHECK(status.code() == 128 + SIGKILL);
}

TEST_CASE("child_starts_from_process_with_threads") {
  std::vector<std::thread> threads;
  std::vector<int> codes(8, -1);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    threads.emplace_back([&, i] {
      auto child = Child::start(shell("exit " + std::to_string(i)));
      if (child) codes[i] = child->wait().code();
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(codes == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("supervised_program_gets_input_and_returns_output") {
  const auto result = ran(shell("cat; echo one >&2; printf two >&2; exit 3"), "input");
  CHECK(result.end.kind == ProcessEnd::Kind::exited);
  CHECK(result.end.number == 3);
  CHECK(result.end.output == "input");
  CHECK(result.lines == std::vector<std::string>{"one", "two"});
  // The program does not read it.
  CHECK(ran(shell("exit 0"), std::string(100'000, 'x')).end.number == 0);
}

TEST_CASE("supervised_program_is_stopped_at_time_or_output_limit") {
  const std::uint64_t begin = now_us();
  CHECK(ran(shell("sleep 100"), "", {.time = std::chrono::milliseconds(100), .output = 10})
            .end.kind == ProcessEnd::Kind::timed_out);
  CHECK(ran(shell("yes"), "", {.time = std::chrono::seconds(20), .output = 10}).end.kind ==
        ProcessEnd::Kind::printed_too_much);
  const auto loud =
      ran(shell("yes >&2"), "", {.time = std::chrono::milliseconds(300), .output = 10, .lines = 3});
  CHECK(loud.lines == std::vector<std::string>{"y", "y", "y", "prints more, which is not shown"});
  CHECK(now_us() - begin < 10'000'000);
}

TEST_CASE("supervised_program_leftovers_do_not_block") {
  const std::uint64_t begin = now_us();
  CHECK(ran(shell("sleep 100 & echo said")).end.output == "said\n");
  const auto left =
      ran(shell("sleep 100 & echo $!"), "",
          {.time = std::chrono::seconds(20), .output = 100, .group = RunLimits::Group::left});
  const pid_t pid = std::stoi(left.end.output);
  CHECK(::kill(pid, 0) == 0);
  ::kill(pid, SIGKILL);
  CHECK(now_us() - begin < 10'000'000);
}

TEST_CASE("supervised_long_lines_are_cut_or_split") {
  RunLimits limits{.time = std::chrono::seconds(20), .output = 10, .line = 3};
  const std::string script = "echo abc >&2; echo abcdefg >&2; printf ab >&2";
  CHECK(ran(shell(script), "", limits).lines == std::vector<std::string>{"abc", "abc", "ab"});
  limits.splits = true;
  CHECK(ran(shell(script), "", limits).lines ==
        std::vector<std::string>{"abc", "abc", "def", "g", "ab"});
}

TEST_CASE("supervised_child_is_killed_when_a_polled_file_demands") {
  auto [lines, lines_end] = *make_pipe();
  const UniqueFd others = std::move(make_pipe()->first);  // the other end is closed
  Program program = shell("exec sleep 100");
  program.group = Program::Group::session;
  program.descriptors = {{lines_end.get(), 2}};
  auto child = *Child::start(program);
  UniqueFd none;
  const auto end =
      supervise(child, none, lines, {.time = std::chrono::seconds(0)}, [](std::string_view) {},
                {.add =
                     [&](auto& files) {
                       files.push_back({others.get(), 0, 0});
                     },
                 .ready = [](auto files) { return files[0].revents == 0; }});
  CHECK(end.kind == ProcessEnd::Kind::signalled);
  CHECK(end.number == SIGKILL);
  CHECK_FALSE(child.running());
}

TEST_CASE("child_program_is_executed_by_descriptor") {
  const UniqueFd file(::open("/bin/echo", O_RDONLY | O_CLOEXEC));
  Program program{.path = "/out/of/reach",
                  .arguments = {"echo", "x"},
                  .descriptors = {{file.get(), 3}},
                  .executed = 3};
  CHECK(ran(std::move(program)).end.output == "x\n");
}

TEST_CASE("find_program_searches_absolute_directories_only") {
  CHECK(find_program("sh", "/nonexistent:/usr/bin:/bin").value() == "/usr/bin/sh");
  CHECK(find_program("./sh", "").value() == "./sh");
  CHECK(find_program("sh", ":.:bin").error().kind() == ErrorKind::not_found);
}
