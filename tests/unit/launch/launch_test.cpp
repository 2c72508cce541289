#include "launch/launch.hpp"
#include "base/socket.hpp"
#include "launch/leader.hpp"
#include "task/entering/arrival.hpp"
#include "unit/catch2_compat.hpp"

#include <thread>

using namespace spc;

namespace {

struct NoLog final : Log {
  void write(LogLevel, std::string_view) noexcept override {}
};

/// Launches a task whose agent answers `failure` instead of letting it lead.
Result<void> launch_against(const Error& failure, LaunchRequest request) {
  auto [of_task, of_agent] = socket_pair().value();
  std::thread agent([&, common = std::move(of_agent)] {
    TaskMessage message;
    auto [line, end_for_task] = socket_pair().value();
    const int passed[] = {end_for_task.get()};
    if (!receive_struct(common.get(), message) || !send_struct(common.get(), char{}, passed))
      return;
    end_for_task.reset();
    message = {};
    message.kind = TaskMessageKind::failed;
    message.failure = WireError(failure);
    [[maybe_unused]] const auto sent = send_struct(line.get(), message);
  });
  StepChannel step;
  step.tasks = std::move(of_task);
  MessageStyle style = MessageStyle::own;
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
  // launch() drops the capabilities of its process.
  auto entered = run_apart(
      [&]() -> Result<void> {
        SPC_TRY(launch(call));
        return {};
      },
      "launch");
  agent.join();
  return entered;
}

Error heard_by_task(const Error& failure, const std::string& image) {
  LaunchRequest request;
  request.image = image;
  return launch_against(failure, std::move(request)).error();
}

}  // namespace

TEST_CASE("import_failure_keeps_its_kind_for_the_task") {
  for (const ErrorKind kind :
       {ErrorKind::not_found, ErrorKind::refused, ErrorKind::no_space, ErrorKind::corrupt}) {
    const auto heard = heard_by_task(Error(kind, "no").during_pull("a"), "registry:5000/a");
    CHECK(heard.kind() == kind);
    CHECK(heard.message() == "pull image \"a\": no");
  }
}

TEST_CASE("import_failure_keeps_errno_and_hint") {
  const auto heard = heard_by_task(Error::from_errno(EDQUOT, "write a layer"), "registry:5000/a");
  CHECK(heard.sys_errno() == EDQUOT);
  CHECK(heard.kind() == ErrorKind::no_space);
  CHECK(heard.message() == Error::from_errno(EDQUOT, "write a layer").message());
}

TEST_CASE("name_remove_ends_other_tasks_by_errno_not_text") {
  LaunchRequest request;
  request.image = "registry:5000/a";
  request.name = ContainerName::parse("work:remove").value();
  const std::string text = "the container was removed";
  CHECK(launch_against(Error(ErrorKind::not_found, text, kRemovedErrno), request).has_value());
  CHECK(launch_against(Error(ErrorKind::not_found, "other text", kRemovedErrno), request));
  CHECK(launch_against(Error(ErrorKind::not_found, text), request).error().message() == text);
  request.name = ContainerName::parse("work").value();
  CHECK_FALSE(launch_against(Error(ErrorKind::not_found, text, kRemovedErrno), request));
}
