#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "task/root_setup.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
namespace fs = std::filesystem;

namespace {

/// A temporary directory of the test.
struct Scratch {
  fs::path path;
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "spc-root-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Scratch() { fs::remove_all(path); }

  /// Returns the text that the function returns in a process whose root is the directory.
  [[nodiscard]] std::string inside(const std::function<std::string()>& what) const {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
    const pid_t child = ::fork();
    if (child == 0) {
      const bool is_inside = (::geteuid() == 0 || ::unshare(CLONE_NEWUSER) == 0) &&
                             ::chroot(path.c_str()) == 0 && ::chdir("/") == 0;
      const std::string text = is_inside ? what() : "no chroot";
      ::_exit(::write(ends[1], text.data(), text.size()) < 0 ? 1 : 0);
    }
    const UniqueFd from(ends[0]);
    ::close(ends[1]);
    char text[4096];
    const ssize_t size = ::read(from.get(), text, sizeof text);
    ::waitpid(child, nullptr, 0);
    return {text, size > 0 ? static_cast<std::size_t>(size) : 0};
  }
  /// Returns the message of open_target() in the directory as root, or the error.
  [[nodiscard]] std::string open(const std::string& target, bool directory = true) const {
    return inside([&]() -> std::string {
      const auto opened = open_target(target, directory);
      return opened ? "" : opened.error().message();
    });
  }
  /// Makes a link, with the directories above it.
  void link(const std::string& at, const std::string& to) const {
    fs::create_directories((path / at).parent_path());
    fs::create_symlink(to, path / at);
  }
};

}  // namespace

TEST_CASE("passwd_entry_of_user_replaces_equal_name_or_id") {
  const std::string image =
      "root:x:0:0::/root:/bin/sh\nalice:x:7:7::/:/bin/sh\nubuntu:x:2001:2001::/home/ubuntu:/bin/"
      "sh\n";
  CHECK(with_entry(image, "alice:x:2001:2001::/home/alice:/bin/bash") ==
        "root:x:0:0::/root:/bin/sh\nalice:x:2001:2001::/home/alice:/bin/bash\n");
  CHECK(with_entry("", "a:x:1:") == "a:x:1:\n");
}

TEST_CASE("shared_memory_is_opened_after_dev_is_mounted") {
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
  const auto dev = std::ranges::find(seen, "begin mount /dev");
  const auto shm = std::ranges::find(seen, "open /dev/shm");
  REQUIRE(shm != seen.end());
  CHECK(std::find(dev, shm, "settle") != shm);
  CHECK(seen.back() == "settle");
}

TEST_CASE("own_dev_is_mounted_after_host_trees") {
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
  root.mounts.resize(2);
  root.dev_targets = 2;
  REQUIRE(attach_host_trees(root, open, attach));
  CHECK(begun == std::vector<std::string>{"mount /proc", "mount /sys", "mount /tmp"});
}

TEST_CASE("mount_target_missing_is_created_with_parents") {
  const Scratch scratch;
  CHECK(open_target((scratch.path / "a/b/c").string(), true));
  CHECK(fs::is_directory(scratch.path / "a/b/c"));
  CHECK(open_target((scratch.path / "d/e/file").string(), false));
  CHECK(fs::is_regular_file(scratch.path / "d/e/file"));
}

TEST_CASE("mount_target_existing_is_unchanged") {
  const Scratch scratch;
  fs::create_directories(scratch.path / "a");
  fs::permissions(scratch.path / "a", fs::perms::owner_read | fs::perms::owner_exec);
  CHECK(open_target((scratch.path / "a").string(), true));
  CHECK(fs::status(scratch.path / "a").permissions() ==
        (fs::perms::owner_read | fs::perms::owner_exec));
}

TEST_CASE("mount_target_dangling_link_is_completed") {
  const Scratch scratch;
  fs::create_symlink("run/real", scratch.path / "link");
  CHECK(open_target((scratch.path / "link").string(), false));
  CHECK(fs::is_regular_file(scratch.path / "run/real"));
  CHECK(fs::is_symlink(scratch.path / "link"));
}

TEST_CASE("mount_target_links_in_the_middle_are_completed") {
  struct Row {
    std::vector<std::pair<std::string, std::string>> links;
    std::string target, real;
  };
  const Row rows[] = {
      {{{"home", "var/home"}}, "/home/alice", "var/home/alice"},
      {{{"home", "/var/home"}}, "/home/x/y", "var/home/x/y"},
      {{{"home", "./var/./home/"}}, "//home/./alice/", "var/home/alice"},
      {{{"a", "b"}, {"b", "/c"}, {"c", "d/e"}}, "/a/x", "d/e/x"},
      {{{"home", "var/home"}, {"var", "sysroot/var"}}, "/home/a", "sysroot/var/home/a"},
      {{{"home", "var/home"}, {"var/home/alice", "../users/a"}}, "/home/alice", "var/users/a"},
      {{{"home", "missing/../var"}}, "/home/alice", "var/alice"},
      {{{"home", "../../../../var"}}, "/home/alice", "var/alice"},
      {{{"deep/er/home", "../../../../../x"}}, "/deep/er/home/../y", "y"},
      {{{"home", "/../.."}}, "/home/alice", "alice"},
      {{{"usr/lib/x", "/lib/y"}, {"lib", "usr/lib"}}, "/lib/x/z", "usr/lib/y/z"}};
  for (const Row& row : rows) {
    const Scratch scratch;
    for (const auto& [at, to] : row.links) scratch.link(at, to);
    INFO(row.target << " to " << row.real);
    CHECK(scratch.open(row.target) == "");
    CHECK(fs::symlink_status(scratch.path / row.real).type() == fs::file_type::directory);
    const std::string file = row.target + "/file";
    CHECK(scratch.open(file, false) == "");
    CHECK(fs::is_regular_file(scratch.path / row.real / "file"));
    for (const auto& [at, to] : row.links) CHECK(fs::is_symlink(scratch.path / at));
    CHECK(scratch.inside([&] { return without_links(row.target); }) == "/" + row.real);
  }
}

TEST_CASE("mount_target_links_to_no_directory_are_named") {
  const Scratch scratch;
  scratch.link("self", "self");
  scratch.link("a/one", "../b/two");
  scratch.link("b/two", "/a/one");
  scratch.link("grows", "grows/x");
  scratch.link("to-file", "etc/file");
  scratch.link("long", std::string(300, 'x'));
  for (int i = 0; i < 41; ++i) scratch.link("l" + std::to_string(i), "l" + std::to_string(i + 1));
  fs::create_directories(scratch.path / "etc");
  CHECK(scratch.open("/etc/file", false) == "");
  const std::string begin = "open mount target ";
  const std::string end = ": too many levels of symbolic links (hint: choose another target)";
  CHECK(scratch.open("/self/x") == begin + "\"/self/x\": link \"/self\" to \"self\"" + end);
  CHECK(scratch.open("/self", false) == begin + "\"/self\": link \"/self\" to \"self\"" + end);
  CHECK(scratch.open("/a/one/x") == begin + "\"/a/one/x\": link \"/a/one\" to \"../b/two\"" + end);
  CHECK(scratch.open("/grows") == begin + "\"/grows\": link \"/grows\" to \"grows/x\"" + end);
  CHECK(scratch.open("/l0/x") == begin + "\"/l0/x\": link \"/l40\" to \"l41\"" + end);
  CHECK(scratch.open("/l1/x") == "");
  CHECK(fs::is_directory(scratch.path / "l41/x"));
  CHECK(scratch.open("/to-file/x") ==
        begin + "\"/to-file/x\": \"/etc/file\": not a directory (hint: choose another target)");
  CHECK(scratch.open("/to-file") ==
        begin +
            "\"/to-file\": not a directory (hint: source and target must both be directories "
            "or both be files)");
  CHECK(scratch.open("/long/x").find("file name too long") != std::string::npos);
}

TEST_CASE("mount_target_links_never_leave_the_root") {
  const Scratch outer;
  const Scratch scratch;
  const std::string real = outer.path.string();
  scratch.link("out", real);
  scratch.link("up", "../../../../../../../.." + real);
  scratch.link("deep/down", "../.././.." + real);
  for (const char* target : {"/out/made", "/up/made", "/deep/down/made"}) {
    CHECK(scratch.open(target) == "");
    CHECK(scratch.open(target + std::string("-file"), false) == "");
  }
  CHECK(fs::is_empty(outer.path));
  CHECK(fs::is_directory(scratch.path.string() + real + "/made"));
}

TEST_CASE("files_not_requested_never_fail_the_set_up") {
  const Scratch outer;
  const Scratch scratch;
  scratch.link("etc", "usr/etc");
  scratch.link("loop", "loop");
  fs::create_directories(scratch.path / "usr/etc/passwd/x");
  RootSetup root;
  root.container_runs = true;  // no host trees
  root.passwd_entry = "alice:x:2001:2001::/home/alice:/bin/bash";
  root.group_entries = {"alice:x:2001:"};
  root.directories = {"/loop/alice", "/home/alice"};
  root.files = {{.path = "/loop/file", .text = "x"}, {.path = "/etc/file", .text = "x"}};
  root.links = {{"/loop/link", "x"}, {"/etc/link", "x"}, {"/loop", "y"}};
  const auto with_mount = [&](const std::string& target, bool optional) {
    root.mounts.clear();
    root.mounts.push_back({.asked_by = "hook x", .target = target, .optional = optional});
    return scratch.inside([&]() -> std::string {
      std::string text;
      const AttachSource attach{
          .begin = [&](std::uint32_t, const UniqueFd&, const std::string& step) -> Result<void> {
            text += step;
            return {};
          },
          .settle = {}};
      const auto done = set_up_root(root, attach);
      if (!done) return done.error().message();
      for (const std::string& line : *done) text += "; " + line;
      return text;
    });
  };
  const std::string left_out =
      "; not written: \"/etc/passwd\": is a directory"
      "; not written: \"/loop/file\": too many levels of symbolic links"
      "; not written: \"/loop/link\": too many levels of symbolic links";
  scratch.link("etc/resolv.conf", "resolv.conf");
  CHECK(with_mount("/etc/resolv.conf", true) == "hook x: mount \"\"" + left_out);
  CHECK(fs::is_regular_file(fs::symlink_status(scratch.path / "usr/etc/resolv.conf")));
  CHECK(fs::is_regular_file(scratch.path / "usr/etc/group"));
  CHECK(fs::is_regular_file(scratch.path / "usr/etc/file"));
  CHECK(fs::read_symlink(scratch.path / "usr/etc/link") == "x");
  CHECK(fs::read_symlink(scratch.path / "loop") == "y");
  const std::string now = "; not written: \"/etc/passwd\": is a directory";
  CHECK(with_mount("/etc/passwd", true) ==
        now + "; not mounted: open mount target \"/etc/passwd\": is a directory");
  CHECK(with_mount("/etc/passwd", false) ==
        "hook x: open mount target \"/etc/passwd\": is a directory (hint: source and target must "
        "both be directories or both be files)");
  scratch.link("etc/self", "self");
  CHECK(with_mount("/etc/self", false) ==
        "hook x: open mount target \"/etc/self\": link \"/usr/etc/self\" to \"self\": too many "
        "levels of symbolic links (hint: choose another target)");
}

TEST_CASE("mount_target_link_loop_is_refused") {
  const Scratch scratch;
  fs::create_symlink("b", scratch.path / "a");
  fs::create_symlink("a", scratch.path / "b");
  CHECK_FALSE(open_target((scratch.path / "a").string(), false));
}

TEST_CASE("proc_links_to_open_files_are_not_followed") {
  const UniqueFd root(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string magic = "/proc/self/fd/" + std::to_string(root.get());
  CHECK_FALSE(open_inside(magic.c_str(), O_PATH | O_DIRECTORY));
  CHECK_FALSE(open_inside((magic + "/etc").c_str(), O_PATH | O_DIRECTORY));
  CHECK(open_inside("/proc/self/status", O_RDONLY));
}
