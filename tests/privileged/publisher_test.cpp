#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "agent/node/setup.hpp"
#include "base/file.hpp"
#include "unit/catch.hpp"
#include "scene.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

namespace {

/// Of a process of this name; 0: there is none.
pid_t parent_of(const std::string& program) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::string name, field;
    pid_t parent = 0;
    std::ifstream(entry.path() / "comm") >> name;
    std::ifstream stat(entry.path() / "stat");
    if (name == program && stat >> field >> field >> field >> parent) return parent;
  }
  return 0;
}

/// A child that kills the first publisher that it sees.
pid_t start_killer() {
  const pid_t killer = ::fork();
  REQUIRE(killer >= 0);
  if (killer > 0) return killer;
  pid_t publisher = 0;
  const bool found = becomes_true([&] { return (publisher = parent_of("layer-verifier")) > 1; });
  ::_exit(found && ::kill(publisher, SIGKILL) == 0 ? 0 : 1);
}

}  // namespace

TEST_CASE("a publisher that is killed fails the pull, and import does not wait for its word") {
  fs::remove_all(SPC_STORE_DIR);
  fs::remove_all(SPC_RUN_DIR);
  REQUIRE(set_up_node(12345, 12345));
  // Its verifier waits for that of another layer, which does not come.
  const UniqueFd wishes = std::move(sealed_memory_file("request", "b")).value();
  const pid_t killer = start_killer();
  {
    Step step;
    const auto answer = step.start(0, wishes, std::move(sealed_memory_file("record", "settings")).value());
    REQUIRE(answer.failure.is_set());
    CHECK(answer.failure.error().message().find("pull the image: import exited unexpectedly") != std::string::npos);
  }
  int status = -1;
  ::waitpid(killer, &status, 0);
  CHECK(status == 0);
  CHECK(fs::is_empty(SPC_STORE_DIR "/layers/sha256"));
}
