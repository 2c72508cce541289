// Tests how the agent reads the site's policy. This program acts as `import policy`, which stops
// (programs.hpp).

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "agent/node_setup.hpp"
#include "files.hpp"
#include "scene.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

TEST_CASE("policy_parser_stopped_is_an_error_within_ten_seconds") {
  fs::remove_all(SPC_STORE_DIR);
  fs::remove_all(SPC_RUN_DIR);
  REQUIRE(set_up_node(Step::kUser, Step::kUser));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    PolicyRecord policy;
    const auto read = current_policy(Step::kUser, Step::kUser, policy);
    const std::string error = read ? "" : read.error().message();
    ::_exit(error.find("config.toml") == std::string::npos ? 2
            : ::waitpid(-1, nullptr, 0) == -1              ? 0
                                                           : 3);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(becomes_true([] { return running("import") == 0; }));
}
