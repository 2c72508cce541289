#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "task/root/root_setup.hpp"
#include "unit/test.hpp"

using namespace spc;
namespace fs = std::filesystem;

namespace {

/// A directory of the test's own.
struct Scratch {
  fs::path path;
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "spc-root-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Scratch() { fs::remove_all(path); }
};

}  // namespace

TEST_CASE("the user's entry replaces entries of the same name or id") {
  const std::string image =
      "root:x:0:0::/root:/bin/sh\nalice:x:7:7::/:/bin/sh\nubuntu:x:2001:2001::/home/ubuntu:/bin/"
      "sh\n";
  CHECK(with_entry(image, "alice:x:2001:2001::/home/alice:/bin/bash") ==
        "root:x:0:0::/root:/bin/sh\nalice:x:2001:2001::/home/alice:/bin/bash\n");
  CHECK(with_entry("", "a:x:1:") == "a:x:1:\n");
}

TEST_CASE(
    "the shared memory of a container is opened in its /dev, and not before that is mounted") {
  std::vector<std::string> seen;
  const AttachSource attach{
      .begin = [&](std::uint32_t, const UniqueFd&, const std::string& path) -> Result<void> {
        seen.push_back("begin " + path);
        return {};
      },
      .settle = [&]() -> Result<void> {
        seen.emplace_back("settle");
        return {};
      }};
  const auto open = [&](const std::string& path) -> Result<UniqueFd> {
    seen.push_back("open " + path);
    return UniqueFd();
  };
  RootSetup root;
  root.namespaces = own_ipc;
  REQUIRE(attach_host_trees(root, open, attach));
  const auto dev = std::ranges::find(seen, "begin /dev");
  const auto shm = std::ranges::find(seen, "open /dev/shm");
  REQUIRE(shm != seen.end());
  CHECK(std::find(dev, shm, "settle") != shm);
  CHECK(seen.back() == "settle");
}

TEST_CASE("a /dev of its own comes after the host's trees, none of which lie in it") {
  std::vector<std::string> begun;
  const AttachSource attach{
      .begin = [&](std::uint32_t, const UniqueFd&, const std::string& path) -> Result<void> {
        begun.push_back(path);
        return {};
      },
      .settle = {}};
  const auto open = [&](const std::string&) -> Result<UniqueFd> { return UniqueFd(); };
  RootSetup root;
  root.namespaces = own_ipc;
  root.targets.resize(2);
  root.dev_targets = 2;
  REQUIRE(attach_host_trees(root, open, attach));
  CHECK(begun == std::vector<std::string>{"/proc", "/sys", "/tmp"});
}

TEST_CASE("a target that is absent is made with its parents") {
  const Scratch scratch;
  CHECK(open_target((scratch.path / "a/b/c").string(), true));
  CHECK(fs::is_directory(scratch.path / "a/b/c"));
  CHECK(open_target((scratch.path / "d/e/file").string(), false));
  CHECK(fs::is_regular_file(scratch.path / "d/e/file"));
}

TEST_CASE("a target that exists is left as it is") {
  const Scratch scratch;
  fs::create_directories(scratch.path / "a");
  fs::permissions(scratch.path / "a", fs::perms::owner_read | fs::perms::owner_exec);
  CHECK(open_target((scratch.path / "a").string(), true));
  CHECK(fs::status(scratch.path / "a").permissions() ==
        (fs::perms::owner_read | fs::perms::owner_exec));
}

TEST_CASE("a dangling link as target is completed where it points to") {
  const Scratch scratch;
  fs::create_symlink("run/real", scratch.path / "link");
  CHECK(open_target((scratch.path / "link").string(), false));
  CHECK(fs::is_regular_file(scratch.path / "run/real"));
  CHECK(fs::is_symlink(scratch.path / "link"));
}

TEST_CASE("a loop of links as target is refused") {
  const Scratch scratch;
  fs::create_symlink("b", scratch.path / "a");
  fs::create_symlink("a", scratch.path / "b");
  CHECK_FALSE(open_target((scratch.path / "a").string(), false));
}

TEST_CASE("links of /proc to open files are not followed") {
  const UniqueFd root(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string magic = "/proc/self/fd/" + std::to_string(root.get());
  CHECK_FALSE(open_inside(magic.c_str(), O_PATH | O_DIRECTORY));
  CHECK_FALSE(open_inside((magic + "/etc").c_str(), O_PATH | O_DIRECTORY));
  CHECK(open_inside("/proc/self/status", O_RDONLY));
}
