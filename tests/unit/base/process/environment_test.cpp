#include "base/process/environment.hpp"

#include <unistd.h>

#include "base/process/child.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("process_environment_is_readable_during_exec") {
  const std::string script = "exec sh -c \"$AGAIN\"";
  Program program{.path = "/bin/sh", .arguments = {"sh", "-c", script}, .descriptors = {}};
  program.environment = {"AGAIN=" + script};
  auto child = Child::start(program);
  REQUIRE(child);
  std::size_t without = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto variables = environment_of_process(child->pid());
    REQUIRE(variables);
    if (variables->empty()) ++without;
  }
  CHECK(without == 0);
  child->kill();
}

TEST_CASE("process_environment_empty_or_gone_is_known_at_once") {
  Program program{.path = "/bin/sleep", .arguments = {"sleep", "100"}, .descriptors = {}};
  program.environment = std::vector<std::string>();
  auto child = Child::start(program);
  REQUIRE(child);
  const auto none = environment_of_process(child->pid());
  REQUIRE(none);
  CHECK(none->empty());
  const pid_t was = child->pid();
  child->kill();
  CHECK_FALSE(environment_of_process(was));
}
