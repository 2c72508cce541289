// slurmstepd's side of a step: accepted messages from the user's processes, and its timeouts.

#include "task/step_agent.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "base/socket.hpp"
#include "protocol/save.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

int lowest_free() {
  const int lowest = ::dup(0);
  ::close(lowest);
  return lowest;
}

/// A saver that is a child of slurmstepd. Returns after it has reported its start with a
/// superfluous descriptor.
template <typename Life>
pid_t start_saver(const StepChannel& channel, Life life) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const int unwanted[] = {0};
    if (!send_struct(channel.save.get(), SaveMessage{.kind = SaveMessageKind::started}, unwanted))
      ::_exit(1);
    life();
    ::_exit(0);
  }
  char byte = 0;
  while (::recv(channel.step.get(), &byte, 1, MSG_PEEK) < 0) {
  }
  return child;
}

struct Heard {
  std::vector<std::string> lines;
  std::function<void(const char*)> take() {
    return [this](const char* line) { lines.emplace_back(line); };
  }
};

}  // namespace

TEST_CASE("step_without_saver_finishes_at_once") {
  auto channel = StepChannel::open().value();
  CHECK(channel.finish(1, 0, 0, [](const char*) {}));
}

TEST_CASE("step_saver_messages_are_forwarded_without_descriptors") {
  auto channel = StepChannel::open().value();
  const int before = lowest_free();
  const pid_t child = start_saver(channel, [&] {
    SaveMessage message;
    if (!receive_struct(channel.save.get(), message) || message.tasks != 3 || message.killed != 1 ||
        message.failed != 2)
      ::_exit(1);
    const int unwanted[] = {0, 0};
    SaveMessage line{.kind = SaveMessageKind::progress};
    line.text.set("half");
    static_cast<void>(send_struct(channel.save.get(), line, unwanted));
    line = {.kind = SaveMessageKind::done};
    line.text.set("all");
    static_cast<void>(send_struct(channel.save.get(), line));
    ::pause();
  });
  Heard heard;
  CHECK(channel.finish(3, 1, 2, heard.take()));
  CHECK(heard.lines == std::vector<std::string>{"half", "all"});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(lowest_free() <= before);
}

TEST_CASE("step_saver_gone_is_not_waited_for") {
  auto channel = StepChannel::open().value();
  SECTION("it ends meanwhile") {
    start_saver(channel, [] { ::usleep(100'000); });
    CHECK(channel.finish(1, 0, 0, [](const char*) {}).error().message().find("exited unexpectedly") !=
          std::string::npos);
  }
  SECTION("it has been reaped already") {
    const pid_t child = start_saver(channel, [] {});
    ::waitpid(child, nullptr, 0);
    CHECK(channel.finish(1, 0, 0, [](const char*) {}).error().message().find("exited unexpectedly") !=
          std::string::npos);
  }
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
}
