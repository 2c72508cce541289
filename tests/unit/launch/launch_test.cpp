#include "launch/launch.hpp"
#include "base/socket.hpp"
#include "task/entering/visit.hpp"
#include "unit/test.hpp"

#include <thread>

using namespace spc;

namespace {

struct NoLog final : Log {
  void write(LogLevel, std::string_view) noexcept override {}
};

/// What a task hears when its agent says `failure` instead of letting it lead.
Error heard_by_task(const Error& failure, const std::string& image) {
  auto [of_task, of_agent] = socket_pair().value();
  std::thread agent([&, common = std::move(of_agent)] {
    TaskMessage message;
    const auto line = std::move(receive_struct(common.get(), message, 2)).value();
    message = {};
    message.kind = TaskMessageKind::failed;
    message.failure = WireError(failure);
    [[maybe_unused]] const auto sent = send_struct(line.front().get(), message);
  });
  StepChannel step;
  step.tasks = std::move(of_task);
  MessageStyle style = MessageStyle::own;
  LaunchRequest request;
  request.image = image;
  request.style = &style;
  NoLog log;
  const char* const no_variables[] = {nullptr};
  std::int64_t task_flags = -1;
  const TaskCall call{.read = [&](ReadAt) -> Result<Asked> { return Asked{.request = request}; },
                      .variables = no_variables,
                      .step = step,
                      .style = style,
                      .log = log,
                      .before_entering = {},
                      .before_leading = {},
                      .task_flags = task_flags};
  // Whoever launches gives up what it may.
  const auto entered = run_apart(
      [&]() -> Result<void> {
        SPC_TRY(launch(call));
        return {};
      },
      "launch");
  agent.join();
  return entered.error();
}

}  // namespace

TEST_CASE("an import's failure is of the same kind when the task hears of it") {
  for (const ErrorKind kind :
       {ErrorKind::not_found, ErrorKind::refused, ErrorKind::no_space, ErrorKind::corrupt}) {
    const auto heard = heard_by_task(Error(kind, "pull image \"a\": no"), "registry:5000/a");
    CHECK(heard.kind() == kind);
    CHECK(heard.message() == "pull image \"a\": no");
  }
}

TEST_CASE("a failure keeps its errno and its hint") {
  const auto heard = heard_by_task(Error::from_errno(EDQUOT, "write a layer"), "registry:5000/a");
  CHECK(heard.sys_errno() == EDQUOT);
  CHECK(heard.kind() == ErrorKind::no_space);
  CHECK(heard.message() == Error::from_errno(EDQUOT, "write a layer").message());
}
