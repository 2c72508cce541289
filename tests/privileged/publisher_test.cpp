#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "agent/node_setup.hpp"
#include "base/file.hpp"
#include "base/process/own_program.hpp"
#include "files.hpp"
#include "fuse_server.hpp"
#include "scene.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

namespace {

/// Returns a process of this name, 0 if there is none.
pid_t process_of(const std::string& program) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::string name;
    std::ifstream(entry.path() / "comm") >> name;
    if (name == program) return std::stoi(entry.path().filename());
  }
  return 0;
}

/// Returns the parent of such a process.
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

/// Starts a child that kills the first publisher that it finds.
pid_t start_killer() {
  const pid_t killer = ::fork();
  REQUIRE(killer >= 0);
  if (killer > 0) return killer;
  pid_t publisher = 0;
  const bool found = becomes_true([&] { return (publisher = parent_of("layer-verifier")) > 1; });
  ::_exit(found && ::kill(publisher, SIGKILL) == 0 ? 0 : 1);
}

}  // namespace

TEST_CASE("publisher_killed_fails_the_pull") {
  fs::remove_all(SPC_STORE_DIR);
  fs::remove_all(SPC_RUN_DIR);
  REQUIRE(set_up_node(12345, 12345));
  // Its verifier waits for that of another layer, which never starts.
  const UniqueFd wishes = std::move(sealed_memory_file("request", "b")).value();
  const pid_t killer = start_killer();
  {
    Step step;
    const auto answer =
        step.start(0, wishes, std::move(sealed_memory_file("record", "settings")).value());
    REQUIRE(answer.failure.is_set());
    CHECK(answer.failure.error().message().find("pull the image: import exited unexpectedly") !=
          std::string::npos);
  }
  int status = -1;
  ::waitpid(killer, &status, 0);
  CHECK(status == 0);
  CHECK(fs::is_empty(SPC_STORE_DIR "/layers/sha256"));
}

TEST_CASE("fuse_server_failure_does_not_end_pull_of_other_task") {
  fs::remove_all(SPC_STORE_DIR);
  fs::remove_all(SPC_RUN_DIR);
  REQUIRE(set_up_node(12345, 12345));
  const ImageScene scene;
  std::ofstream(scene.tree / "file") << "text";
  make_squashfs(scene.tree, scene.image);
  const UniqueFd image(::open(scene.image.c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd record = std::move(sealed_memory_file("record", "settings")).value();
  Step step;
  constexpr auto kFirst = TaskMessage::start_private | TaskMessage::start_squashfs;
  REQUIRE(step.start(kFirst, record, image).kind == TaskMessageKind::ready);
  // Its verifier waits for that of another layer. This process takes that layer's role after the
  // server has ended.
  step.order(TaskMessage::start_private, std::move(sealed_memory_file("request", "b")).value(),
             record);
  REQUIRE(becomes_true([] { return process_of("layer-verifier") != 0; }));
  const pid_t server = process_of("fuse");
  REQUIRE(server > 0);
  REQUIRE(::kill(server, SIGKILL) == 0);
  REQUIRE(becomes_true([&] { return ::kill(server, 0) != 0; }));  // the agent has reaped it
  const UniqueFd other(::open(own_program("both-verifiers").c_str(), O_WRONLY | O_CLOEXEC));
  TaskMessage answer;
  REQUIRE(step.hear(answer));
  CHECK(answer.failure.error().message().find("not a layer written by the converter") !=
        std::string::npos);
}
