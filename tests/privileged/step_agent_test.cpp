// slurmstepd's handle of the agent: the processes that it signals. The agent is this program, which
// waits (programs.hpp).

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string_view>

#include "files.hpp"
#include "scene.hpp"
#include "task/step_agent.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

struct Started {
  StepChannel channel;
  StepAgent agent;

  Started() : channel(std::move(StepChannel::open()).value()) {
    const StepId step{.uid = Step::kUser, .gid = Step::kUser, .job = 1, .step = 1};
    agent = std::move(StepAgent::start(std::move(channel.parked_agent), step, ::getpid())).value();
    // Before it executes, the process has this program's name and arguments. It may not yet lead
    // its group.
    const std::string_view words("agent\0step\0", 11);
    REQUIRE(becomes_true([&] {
      return proc_file(agent.group(), "cmdline").find(words) != std::string::npos;
    }));
  }
};

/// Starts a process with this PID that is not a child of this one, in its own group and session.
/// Its parent lives as long as it does.
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

TEST_CASE("agent_ends_with_its_step") {
  Started started;
  const pid_t pid = started.agent.group();
  CHECK(started.agent.stop(started.channel));
  CHECK_FALSE(lives(pid));
  CHECK(::kill(pid, 0) != 0);
}

TEST_CASE("agent_number_reused_by_other_group_is_not_killed") {
  Started started;
  const pid_t number = started.agent.group();
  REQUIRE(::kill(number, SIGKILL) == 0);
  REQUIRE(::waitpid(-1, nullptr, 0) == number);  // as slurmstepd does for any child
  const pid_t parent = start_stranger(number);
  REQUIRE(becomes_true([&] { return lives(number) && ::getsid(number) == number; }));
  [[maybe_unused]] const auto stopped = started.agent.stop(started.channel);
  CHECK(lives(number));
  ::kill(parent, SIGKILL);
  ::kill(number, SIGKILL);
  ::waitpid(parent, nullptr, 0);
}

TEST_CASE("agent_group_left_after_early_end_ends_with_step") {
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

TEST_CASE("agent_ignores_signals_for_tasks") {
  Started started;
  const pid_t pid = started.agent.group();
  for (int signal = 1; signal < SIGRTMAX; ++signal)
    if (signal != SIGKILL && signal != SIGSTOP && signal != 32 && signal != 33)
      CHECK(::kill(pid, signal) == 0);
  ::usleep(50'000);
  CHECK(lives(pid));
  CHECK(started.agent.stop(started.channel));
}
