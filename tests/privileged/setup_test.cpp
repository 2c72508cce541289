#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "agent/node_setup.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

namespace {

constexpr uid_t kService = 12345;

struct stat status_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status;
}

void start_empty() {
  fs::remove_all(SPC_STORE_DIR);
  fs::remove_all(SPC_RUN_DIR);
}

}  // namespace

TEST_CASE("node_setup_sets_owners_and_modes_and_is_repeatable") {
  start_empty();
  for (int time = 0; time < 2; ++time) {
    REQUIRE(set_up_node(kService, kService));
    const auto layers = status_of(SPC_STORE_DIR "/layers/sha256");
    CHECK(layers.st_uid == 0);
    CHECK(layers.st_gid == kService);
    CHECK((layers.st_mode & 07777) == 0750);
    const auto images = status_of(SPC_STORE_DIR "/images");
    CHECK(images.st_uid == kService);
    CHECK((images.st_mode & 07777) == 0700);
    for (const auto& [path, mode] : {std::pair(SPC_STORE_DIR "/records", 0750U),
                                     {SPC_STORE_DIR "/grants", 0750U},
                                     {SPC_STORE_DIR "/names", 0755U}}) {
      CHECK(status_of(path).st_uid == 0);
      CHECK((status_of(path).st_mode & 07777) == mode);
    }
    CHECK((status_of(SPC_STORE_DIR "/locks").st_mode & 07777) == 0600);
  }
}

// outcome 141 refused: store of wrong owner or mode, a link, read-only
TEST_CASE("node_setup_refuses_directory_of_another_owner") {
  start_empty();
  fs::create_directories(SPC_RUN_DIR);
  REQUIRE(::chown(SPC_RUN_DIR, 4711, 4711) == 0);
  const auto done = set_up_node(kService, kService);
  REQUIRE_FALSE(done);
  CHECK(done.error().message() == "use directory \"" SPC_RUN_DIR
                                  "\": owned by user 4711 (hint: remove it or chown it to root)");
}

// outcome 141 refused: store of wrong owner or mode, a link, read-only
TEST_CASE("node_setup_follows_store_link_only_to_root_directory") {
  start_empty();
  fs::create_directories("/var/lib/elsewhere");
  fs::create_directory_symlink("/var/lib/elsewhere", SPC_STORE_DIR);
  REQUIRE(::chown("/var/lib/elsewhere", 4711, 4711) == 0);
  const auto refused = set_up_node(kService, kService);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message().find("owned by user 4711") != std::string::npos);
  CHECK(fs::is_empty("/var/lib/elsewhere"));
  REQUIRE(::chown("/var/lib/elsewhere", 0, 0) == 0);
  REQUIRE(set_up_node(kService, kService));
  CHECK(status_of("/var/lib/elsewhere/images").st_uid == kService);
}
