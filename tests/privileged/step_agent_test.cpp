// slurmstepd's handle of the agent: whom it signals. The agent is this program, which waits
// (programs.hpp).

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "files.hpp"
#include "scene.hpp"
#include "task/step_agent.hpp"
#include "unit/test.hpp"

using namespace spc;

namespace {

struct Started {
  StepChannel channel;
  StepAgent agent;

  Started() : channel(std::move(StepChannel::open()).value()) {
    const StepId step{.uid = Step::kUser, .gid = Step::kUser, .job = 1, .step = 1};
    agent = std::move(StepAgent::start(std::move(channel.parked_agent), step, ::getpid())).value();
    // It has the same name before it executes.
    REQUIRE(becomes_true(
        [&] { return proc_file(agent.group(), "cmdline").find("step") != std::string::npos; }));
  }
};

/// A process with this number, in a group and session of its own, that is no child of ours; its
/// parent, which lives as long.
pid_t start_stranger(pid_t number) {
  const pid_t parent = ::fork();
  REQUIRE(parent >= 0);
  if (parent > 0) return parent;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::ofstream("/proc/sys/kernel/ns_last_pid") << number - 1;
    const pid_t stranger = ::fork();
    if (stranger == 0) {
      if (::getpid() != number) ::_exit(1);
      ::setsid();
      for (;;) ::pause();
    }
    if (stranger == number) break;
    ::waitpid(stranger, nullptr, 0);
  }
  for (;;) ::pause();
}

bool lives(pid_t pid) {
  const std::string state = status_line(pid, "State");
  return !state.empty() && state[0] != 'Z' && state[0] != 'X';
}

}  // namespace

TEST_CASE("an agent ends with its step") {
  Started started;
  const pid_t pid = started.agent.group();
  CHECK(started.agent.stop(started.channel));
  CHECK_FALSE(lives(pid));
  CHECK(::kill(pid, 0) != 0);
}

TEST_CASE(
    "a group of processes that has got the number of an agent that ended early is not killed with "
    "the step") {
  Started started;
  const pid_t number = started.agent.group();
  REQUIRE(::kill(number, SIGKILL) == 0);
  REQUIRE(::waitpid(-1, nullptr, 0) == number);  // as slurmstepd does, whatever child ends
  const pid_t parent = start_stranger(number);
  REQUIRE(becomes_true([&] { return lives(number) && ::getsid(number) == number; }));
  [[maybe_unused]] const auto stopped = started.agent.stop(started.channel);
  CHECK(lives(number));
  ::kill(parent, SIGKILL);
  ::kill(number, SIGKILL);
  ::waitpid(parent, nullptr, 0);
}

TEST_CASE("what an agent that ended early has left in its group ends with the step") {
  Started started;
  const pid_t number = started.agent.group();
  const pid_t left = ::fork();
  if (left == 0) {
    ::setpgid(0, number);
    for (;;) ::pause();
  }
  REQUIRE(becomes_true([&] { return ::getpgid(left) == number; }));
  REQUIRE(::kill(number, SIGKILL) == 0);
  REQUIRE(::waitpid(number, nullptr, 0) == number);
  [[maybe_unused]] const auto stopped = started.agent.stop(started.channel);
  CHECK_FALSE(lives(left));
}

TEST_CASE("signals that are meant for a step's tasks do not end its agent") {
  Started started;
  const pid_t pid = started.agent.group();
  for (int signal = 1; signal < SIGRTMAX; ++signal)
    if (signal != SIGKILL && signal != SIGSTOP && signal != 32 && signal != 33)
      CHECK(::kill(pid, signal) == 0);
  ::usleep(50'000);
  CHECK(lives(pid));
  CHECK(started.agent.stop(started.channel));
}
