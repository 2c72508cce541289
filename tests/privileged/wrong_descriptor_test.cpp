// A task or leader that passes invalid descriptors: no process of root waits for it, and root's
// files stay unchanged.

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/node_setup.hpp"
#include "base/socket.hpp"
#include "fuse_server.hpp"
#include "protocol/fuse.hpp"
#include "scene.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

namespace {

constexpr char kVictim[] = SPC_STORE_DIR "/victim";
constexpr char kOthers[] = SPC_STORE_DIR "/others";

UniqueFd open_as(const std::string& path, int how) {
  return UniqueFd(::open(path.c_str(), how | O_CLOEXEC));
}

void node_with_victim() {
  fs::remove_all(SPC_STORE_DIR);
  fs::remove_all(SPC_RUN_DIR);
  REQUIRE(set_up_node(12345, 12345));
  std::ofstream(kVictim) << "root's secret";
  REQUIRE(::chmod(kVictim, 0600) == 0);
  REQUIRE(::mkdir(kOthers, 0700) == 0);
  REQUIRE(::chown(kOthers, 999, 999) == 0);
}

bool victim_is_unchanged() {
  struct stat file {
  }, directory{};
  return ::stat(kVictim, &file) == 0 && file.st_uid == 0 && (file.st_mode & 07777) == 0600 &&
         file.st_nlink == 1 && ::stat(kOthers, &directory) == 0 && directory.st_uid == 999 &&
         (directory.st_mode & 07777) == 0700;
}

/// Returns the mount namespace of a user namespace created by the user.
UniqueFd users_mount_namespace() {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool made = ::setresgid(Step::kUser, Step::kUser, Step::kUser) == 0 &&
                      ::setresuid(Step::kUser, Step::kUser, Step::kUser) == 0 &&
                      ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    ::_exit(::write(ends[1], &made, 1) == 1 && ::pause());
  }
  bool made = false;
  REQUIRE(::read(ends[0], &made, 1) == 1);
  REQUIRE(made);
  auto space = open_as("/proc/" + std::to_string(child) + "/ns/mnt", O_RDONLY);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  for (const int end : ends) ::close(end);
  REQUIRE(space);
  return space;
}

/// A server that serves an image and then stops answering. Closing a file of it, or of an overlay
/// above it, blocks.
class Silent {
 public:
  explicit Silent(bool below_overlay) {
    std::ofstream(scene_.tree / "file") << "text";
    make_squashfs(scene_.tree, scene_.image);
    server_.emplace(std::move(FuseServer::start(scene_.image)).value());
    std::string root = server_->root();
    if (below_overlay) {
      overlay_ = (scene_.at / "over").string();
      fs::create_directories(overlay_);
      fs::create_directories(scene_.at / "empty");
      const std::string options = "lowerdir=" + root + ":" + (scene_.at / "empty").string();
      REQUIRE(::mount("overlay", overlay_.c_str(), "overlay", MS_RDONLY, options.c_str()) == 0);
      root = overlay_;
    }
    file_ = open_as(root + "/file", O_RDONLY);
    REQUIRE(file_);
    REQUIRE(::kill(server_->pid(), SIGSTOP) == 0);
  }
  ~Silent() {
    ::kill(server_->pid(), SIGCONT);
    file_.reset();
    if (!overlay_.empty()) ::umount2(overlay_.c_str(), MNT_DETACH);
  }
  Silent(const Silent&) = delete;
  Silent& operator=(const Silent&) = delete;
  [[nodiscard]] int get() const { return file_.get(); }

 private:
  ImageScene scene_;
  std::optional<FuseServer> server_;
  std::string overlay_;
  UniqueFd file_;
};

/// A message and its descriptors at one moment of a start.
struct Moment {
  const char* name;
  std::function<void(const Step&)> before;
  TaskMessage message;
};

void await_kind(const Step& step, TaskMessageKind kind) {
  TaskMessage message;
  while (step.hear(message) && message.kind != kind && message.kind != TaskMessageKind::failed)
    continue;
}

void begin_directory(const Step& step) {
  const TaskMessage start{.kind = TaskMessageKind::start,
                          .start_flags = TaskMessage::start_directory};
  REQUIRE(send_struct(step.line(), start));
  await_kind(step, TaskMessageKind::sources);
}

void name_it(const Step& step) {
  TaskMessage name{.kind = TaskMessageKind::name};
  name.container.bytes.fill(7);
  REQUIRE(send_struct(step.line(), name));
  await_kind(step, TaskMessageKind::named);
}

void begin_set_up(const Step& step) {
  begin_directory(step);
  const auto root = open_as("/usr", O_PATH);
  const int passed[] = {root.get()};
  REQUIRE(send_struct(step.line(), TaskMessage{.kind = TaskMessageKind::source}, passed));
  await_kind(step, TaskMessageKind::set_up);
}

std::vector<Moment> moments() {
  const auto at_once = [](const Step&) {};
  const auto start = [](std::uint32_t flags) {
    return TaskMessage{.kind = TaskMessageKind::start, .start_flags = flags};
  };
  return {{"name", at_once, {.kind = TaskMessageKind::name}},
          {"start of a file", at_once, start(TaskMessage::start_squashfs)},
          {"start of a file with a name", name_it, start(TaskMessage::start_squashfs)},
          {"start of a directory with a name", name_it, start(TaskMessage::start_directory)},
          {"start of what is stored", name_it, start(TaskMessage::start_stored)},
          {"start of an image", at_once, start(TaskMessage::start_known)},
          {"source", begin_directory, {.kind = TaskMessageKind::source}},
          {"target", begin_set_up, {.kind = TaskMessageKind::target}},
          {"set_up_done", begin_set_up, {.kind = TaskMessageKind::set_up_done}},
          {"failed", at_once, {.kind = TaskMessageKind::failed}}};
}

/// Passes the descriptor, alone and with another, and ends the step: the agent must end on its own.
/// `make` returns the owner of the descriptor.
void must_hold(const Moment& moment, const std::string& what, const auto& make) {
  for (const std::size_t count : {1, 2}) {
    INFO(std::string(moment.name) << ", " << count << " x " << what);
    Step step;
    REQUIRE(step.join());
    moment.before(step);
    const auto wrong = make();
    const std::array<int, 2> passed{wrong.get(), wrong.get()};
    [[maybe_unused]] const auto sent =
        send_struct(step.line(), moment.message, std::span(passed).first(count), WhenFull::fail);
    ::usleep(20'000);
    CHECK(step.end());
    CHECK(victim_is_unchanged());
  }
}

}  // namespace

TEST_CASE("wrong_descriptor_of_leader_harms_neither_files_nor_agent") {
  node_with_victim();
  const std::pair<const char*, std::function<UniqueFd()>> wrong[] = {
      {"root's file as a path", [] { return open_as(kVictim, O_PATH); }},
      {"root's file", [] { return open_as(kVictim, O_RDWR); }},
      {"another user's directory as a path", [] { return open_as(kOthers, O_PATH); }},
      {"another user's directory", [] { return open_as(kOthers, O_RDONLY); }},
      {"a directory", [] { return open_as("/usr", O_RDONLY); }},
      {"a socket", [] { return std::move(socket_pair()).value().first; }},
      {"a pipe",
       [] {
         int ends[2];
         REQUIRE(::pipe(ends) == 0);
         ::close(ends[1]);
         return UniqueFd(ends[0]);
       }},
      {"a device", [] { return open_as("/dev/fuse", O_RDWR); }},
      {"a memory file", [] { return UniqueFd(::memfd_create("record", MFD_CLOEXEC)); }},
      {"a mount namespace", [] { return users_mount_namespace(); }}};
  for (const Moment& moment : moments())
    for (const auto& [what, make] : wrong) must_hold(moment, what, make);
}

TEST_CASE("image_on_hanging_server_does_not_block_root") {
  node_with_victim();
  for (const bool below_overlay : {false, true}) {
    const char* const what = below_overlay ? "an overlay over FUSE" : "FUSE";
    for (const Moment& moment : moments())
      must_hold(moment, what, [&] { return Silent(below_overlay); });
  }
}

TEST_CASE("image_on_hanging_server_blocks_only_its_own_server") {
  node_with_victim();
  for (const bool below_overlay : {false, true}) {
    Step step;
    REQUIRE(step.join());
    const Silent silent(below_overlay);
    TaskMessage message{.kind = TaskMessageKind::start, .start_flags = TaskMessage::start_squashfs};
    message.servers = 1;
    REQUIRE(send_struct(step.line(), message));
    const auto server = receive_struct(step.line(), message, 1);
    REQUIRE(message.kind == TaskMessageKind::serves);
    const int passed[] = {silent.get()};
    REQUIRE(send_struct(server->at(0).get(), FuseLoan{}, passed));
    ::usleep(50'000);
    CHECK(step.end());
  }
}

TEST_CASE("build_namespace_of_a_user_is_refused") {
  node_with_victim();
  const std::pair<const char*, std::function<UniqueFd()>> wrong[] = {
      {"a user's", [] { return users_mount_namespace(); }},
      {"a path", [] { return open_as("/proc/self/ns/mnt", O_PATH); }},
      {"another kind", [] { return open_as("/proc/self/ns/user", O_RDONLY); }},
      {"a directory", [] { return open_as("/usr", O_RDONLY); }},
      {"root's file", [] { return open_as(kVictim, O_RDONLY); }}};
  for (const auto& [what, make] : wrong) {
    INFO(std::string(what));
    Step step;
    REQUIRE(step.join(make().get()));
    begin_directory(step);
    TaskMessage answer;
    REQUIRE(step.hear(answer));
    REQUIRE(answer.kind == TaskMessageKind::failed);
    CHECK(answer.failure.error().message().find("it is not one of the node's") !=
          std::string::npos);
    CHECK(step.end());
    CHECK(victim_is_unchanged());
  }
}

TEST_CASE("join_descriptor_is_never_received_by_the_agent") {
  node_with_victim();
  for (const bool below_overlay : {false, true}) {
    for (const std::size_t count : {1, 2, 3}) {
      INFO(count << (below_overlay ? " of an overlay over FUSE" : " of FUSE"));
      Step step;
      {
        const Silent silent(below_overlay);
        const std::array<int, 3> passed{silent.get(), silent.get(), silent.get()};
        const TaskMessage message{.kind = TaskMessageKind::join};
        REQUIRE(send_struct(step.common(), message, std::span(passed).first(count)));
        CHECK(step.join());
        CHECK(step.end());
      }
      CHECK(victim_is_unchanged());
    }
  }
}

TEST_CASE("mount_namespace_on_fuse_holds_up_the_builder_only") {
  node_with_victim();
  for (const bool below_overlay : {false, true}) {
    Step step;
    const Silent silent(below_overlay);
    REQUIRE(step.join(silent.get()));
    begin_directory(step);
    ::usleep(50'000);
    CHECK(step.end());
  }
}

TEST_CASE("join_ends_unclaimed_by_a_killed_task_serve_the_next_task") {
  node_with_victim();
  Step step;
  const TaskMessage message{.kind = TaskMessageKind::join};
  for (int killed = 0; killed < 5; ++killed) REQUIRE(send_struct(step.common(), message));
  CHECK(step.join());
  begin_directory(step);
  CHECK(step.end());
}
