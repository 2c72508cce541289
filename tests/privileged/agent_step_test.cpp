#include <fcntl.h>
#include <grp.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "agent/node_setup.hpp"
#include "agent/privilege.hpp"
#include "base/file.hpp"
#include "base/process/own_program.hpp"
#include "files.hpp"
#include "fuse_server.hpp"
#include "loop_devices.hpp"
#include "programs.hpp"
#include "protocol/image_record.hpp"
#include "protocol/store_layout.hpp"
#include "scene.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/has.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

namespace {

UniqueFd opened(const fs::path& path, int how = O_RDONLY) {
  return UniqueFd(::open(path.c_str(), how | O_CLOEXEC));
}

UniqueFd some_record() { return std::move(sealed_memory_file("record", "settings")).value(); }

void fresh_node() {
  fs::remove_all(SPC_STORE_DIR);
  fs::remove_all(SPC_RUN_DIR);
  REQUIRE(set_up_node(12345, 12345));
}

/// Adds a public image 9 with the layers 1, 2 …. Each has a file `file` that names the layer, and
/// one file of its own.
void add_image(unsigned char layers, bool is_for_kernel = true) {
  fresh_node();
  const auto store = std::move(ImageStore::open(SPC_STORE_DIR)).value();
  ImageRecordHeader header;
  std::memcpy(header.magic, ImageRecordHeader::kMagic, sizeof header.magic);
  header.layer_count = layers;
  const std::string path = SPC_STORE_DIR "/records/" + digest_of(9).hex();
  std::ofstream record(path, std::ios::binary);
  REQUIRE(::chmod(path.c_str(), 0444) == 0);
  const std::string side = SPC_STORE_DIR "/images/" + digest_of(9).hex();
  std::ofstream(side).close();
  const timespec times[] = {{0, UTIME_OMIT}, {::time(nullptr) + 1000, 0}};
  REQUIRE(::utimensat(AT_FDCWD, side.c_str(), times, 0) == 0);
  record.write(reinterpret_cast<const char*>(&header), sizeof header);
  for (unsigned char layer = 1; layer <= layers; ++layer) {
    const ImageScene scene;
    std::ofstream(scene.tree / "file") << "layer " << int{layer};
    std::ofstream(scene.tree / ("of" + std::to_string(layer))) << "own";
    make_squashfs(scene.tree, scene.image, "-comp zstd -all-root");
    auto file = std::move(store.new_object()).value();
    std::string bytes = contents(scene.image);
    if (!is_for_kernel) bytes[6] = 1;  // 65536 more inodes: the kernel then requires a longer table
    REQUIRE(write_all(file.get(), bytes));
    const auto frozen = store.freeze(std::move(file));
    REQUIRE(frozen);
    REQUIRE(store.publish(frozen->get(), store_layout::layer_path(digest_of(layer))));
    record.write(reinterpret_cast<const char*>(digest_of(layer).bytes.data()), sizeof(Digest));
  }
}

/// Returns whether a file can be changed and its directory belongs to the user.
bool is_the_users_own(const char* file, const std::string& text) {
  struct stat status {};
  if (::stat(file, &status) != 0 || status.st_uid != Step::kUser || contents(file) != text)
    return false;
  std::ofstream(file) << "changed";
  return contents(file) == "changed";
}

void serve_by_fuse(AgentTools& tools) { tools.policy.most_layers = 0; }

std::string said(const TaskMessage& answer) {
  return answer.failure.is_set() ? answer.failure.error().message() : "";
}

TextHas says(const TaskMessage& answer, const char* text) { return has(said(answer), text); }

}  // namespace

TEST_CASE("user_squashfs_is_served_by_user_process_at_any_offset") {
  fresh_node();
  const ImageScene scene;
  std::ofstream(scene.tree / "file") << "text";
  make_squashfs(scene.tree, scene.image);
  const std::string squashfs = contents(scene.image);
  for (const std::size_t offset : {std::size_t{0}, std::size_t{12288}}) {
    std::ofstream(scene.image, std::ios::binary) << std::string(offset, 'x') << squashfs;
    Step step;
    const auto answer =
        step.start(TaskMessage::start_squashfs, some_record(), opened(scene.image), {}, offset);
    CHECK(said(answer) == "");
    REQUIRE(answer.kind == TaskMessageKind::ready);
    CHECK(answer.layers == 1);
    CHECK(running("fuse") == 1);
    CHECK(our_loop_devices().empty());
    CHECK(step.inside([] { return is_the_users_own("/file", "text"); }));
    step.kill_agent();
    CHECK(step.inside([] { return contents("/file") == "changed"; }));  // tasks outlive their agent
    step.leave();
    CHECK(becomes_true([] { return running("fuse") == 0; }));
  }
}

TEST_CASE("image_directory_is_opened_with_the_groups_of_the_agent") {
  fresh_node();
  constexpr gid_t kGroup = 4711;
  for (const bool is_member : {true, false}) {
    const ImageScene scene;
    REQUIRE(::chown(scene.tree.c_str(), 0, kGroup) == 0);
    REQUIRE(::chmod(scene.tree.c_str(), 0750) == 0);
    const gid_t groups[] = {is_member ? kGroup : kGroup + 1};
    Step step([&](AgentTools&) { REQUIRE(::setgroups(1, groups) == 0); });
    const auto answer =
        step.start(TaskMessage::start_directory, some_record(), opened(scene.tree, O_PATH));
    INFO(said(answer));
    CHECK((answer.kind == TaskMessageKind::ready) == is_member);
    CHECK((is_member || says(answer, "read the image directory: permission denied")));
  }
}

TEST_CASE("fuse_server_error_reaches_the_user") {
  fresh_node();
  const ImageScene scene;
  std::ofstream(scene.image) << std::string(8192, 'x');
  Step step;
  const auto answer = step.start(TaskMessage::start_squashfs, some_record(), opened(scene.image));
  CHECK(answer.kind == TaskMessageKind::failed);
  CHECK(says(answer, "squashfs"));
  CHECK(becomes_true([] { return running("fuse") == 0; }));
}

TEST_CASE("directory_image_is_the_root_and_unchanged") {
  fresh_node();
  const ImageScene scene;
  std::ofstream(scene.tree / "file") << "text";
  REQUIRE(::chown((scene.tree / "file").c_str(), Step::kUser, Step::kUser) == 0);
  Step step;
  const auto answer =
      step.start(TaskMessage::start_directory, some_record(), opened(scene.tree, O_PATH));
  CHECK(said(answer) == "");
  REQUIRE(answer.kind == TaskMessageKind::ready);
  CHECK(step.inside([] { return is_the_users_own("/file", "text"); }));
  CHECK(contents(scene.tree / "file") == "text");
}

/// A server may report false owners. Here it reports those of root's directory correctly.
TEST_CASE("directory_image_copies_no_file_of_others") {
  fresh_node();
  const ImageScene scene;
  std::ofstream(scene.tree / "roots") << "text";
  REQUIRE(::chmod((scene.tree / "roots").c_str(), 04777) == 0);
  std::ofstream(scene.tree / "own") << "text";
  REQUIRE(::chown((scene.tree / "own").c_str(), Step::kUser, Step::kUser) == 0);
  Step step;
  const auto answer =
      step.start(TaskMessage::start_directory, some_record(), opened(scene.tree, O_PATH));
  CHECK(said(answer) == "");
  REQUIRE(answer.kind == TaskMessageKind::ready);
  CHECK(step.inside([] { return ::open("/roots", O_WRONLY) == -1 && errno == EPERM; }));
  CHECK(step.inside([] { return is_the_users_own("/own", "text"); }));
  CHECK(step.inside([] { return contents("/roots") == "text"; }));
}

TEST_CASE("directory_image_unreadable_by_user_is_refused") {
  fresh_node();
  const ImageScene scene;
  REQUIRE(::chmod(scene.tree.c_str(), 0700) == 0);
  Step step;
  const auto answer =
      step.start(TaskMessage::start_directory, some_record(), opened(scene.tree, O_PATH));
  CHECK(answer.kind == TaskMessageKind::failed);
  CHECK(says(answer, "read the image directory: permission denied"));
}

TEST_CASE("directory_image_on_noexec_file_system_is_refused") {
  fresh_node();
  fs::create_directories("/run/here");
  REQUIRE(::mount("here", "/run/here", "tmpfs", MS_NOEXEC, nullptr) == 0);
  {
    Step step;
    const auto answer =
        step.start(TaskMessage::start_directory, some_record(), opened("/run/here", O_PATH));
    CHECK(answer.kind == TaskMessageKind::failed);
    CHECK(says(answer, "does not allow executables"));
  }
  CHECK(::umount("/run/here") == 0);
}

TEST_CASE("store_layers_served_by_fuse_are_not_evicted") {
  add_image(3);
  Step step(serve_by_fuse);
  const auto answer =
      step.start(TaskMessage::start_known, some_record(), some_record(), digest_of(9));
  CHECK(said(answer) == "");
  REQUIRE(answer.kind == TaskMessageKind::ready);
  CHECK(answer.layers == 3);
  CHECK(running("fuse") == 1);
  CHECK(our_loop_devices().empty());
  CHECK(step.inside([] {
    return is_the_users_own("/file", "layer 3") && contents("/of1") == "own" &&
           contents("/of2") == "own";
  }));
  const auto store = std::move(ImageStore::open(SPC_STORE_DIR)).value();
  CHECK_FALSE(store.evict(digest_of(2)));
  step.kill_agent();
  CHECK_FALSE(store.evict(digest_of(2)));  // tasks outlive their agent and use the layer
  step.leave();
  CHECK(becomes_true([&] { return store.evict(digest_of(2)).has_value(); }));
}

TEST_CASE("server_of_all_layers_killed_gives_errors_without_hanging") {
  add_image(3);
  Step step(serve_by_fuse);
  const auto answer =
      step.start(TaskMessage::start_known, some_record(), some_record(), digest_of(9));
  REQUIRE(answer.kind == TaskMessageKind::ready);
  const auto servers = processes_of("fuse");
  REQUIRE(servers.size() == 1);
  REQUIRE(::kill(servers.front(), SIGKILL) == 0);
  CHECK(becomes_true([] { return running("fuse") == 0; }));
  for (const char* file : {"/of1", "/of2", "/of3"}) {
    CHECK(step.inside([&] {
      const UniqueFd gone(::open(file, O_RDONLY | O_CLOEXEC));
      // ECONNABORTED: the last thread of the server is still ending
      return !gone && (errno == ENOTCONN || errno == ECONNABORTED);
    }));
  }
  CHECK(step.end());
}

TEST_CASE("one_damaged_layer_of_several_reaches_the_user") {
  for (const unsigned char damaged : {std::uint8_t{1}, std::uint8_t{3}}) {
    add_image(3);
    const std::string path = SPC_STORE_DIR "/" + store_layout::layer_path(digest_of(damaged));
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    REQUIRE(write_all(file.get(), std::string(96, 'x')));
    Step step(serve_by_fuse);
    const auto answer =
        step.start(TaskMessage::start_known, some_record(), some_record(), digest_of(9));
    CHECK(answer.kind == TaskMessageKind::failed);
    CHECK(says(answer, "squashfs"));
    CHECK(becomes_true([] { return running("fuse") == 0; }));
  }
}

TEST_CASE("store_layers_are_served_if_kernel_cannot_map_owners") {
  add_image(1);
  // A descriptor that is not a user namespace gives EINVAL, as any does before Linux 6.2.
  const auto like_an_old_kernel = [](AgentTools& tools) {
    tools.id_map = opened("/proc/self/ns/mnt");
  };
  {
    Step step(like_an_old_kernel);
    const auto answer =
        step.start(TaskMessage::start_known, some_record(), some_record(), digest_of(9));
    CHECK(said(answer) == "");
    REQUIRE(answer.kind == TaskMessageKind::ready);
    CHECK(running("fuse") == 1);
    CHECK(step.inside([] { return is_the_users_own("/file", "layer 1"); }));
  }
  Step step([&](AgentTools& tools) {
    like_an_old_kernel(tools);
    tools.policy.squashfs = PolicyRecord::by_kernel;
  });
  const auto answer =
      step.start(TaskMessage::start_known, some_record(), some_record(), digest_of(9));
  CHECK(answer.kind == TaskMessageKind::failed);
  CHECK(says(answer, "mount a layer"));
}

TEST_CASE("store_layers_unsupported_by_kernel_are_served") {
  add_image(2, false);
  {
    Step step;
    const auto answer =
        step.start(TaskMessage::start_known, some_record(), some_record(), digest_of(9));
    CHECK(said(answer) == "");
    REQUIRE(answer.kind == TaskMessageKind::ready);
    CHECK(running("fuse") == 1);
    CHECK(our_loop_devices().empty());
    CHECK(step.inside([] { return is_the_users_own("/file", "layer 2"); }));
  }
  Step step([](AgentTools& tools) { tools.policy.squashfs = PolicyRecord::by_kernel; });
  const auto answer =
      step.start(TaskMessage::start_known, some_record(), some_record(), digest_of(9));
  CHECK(answer.kind == TaskMessageKind::failed);
  CHECK(says(answer, "mount a layer"));
}

TEST_CASE("store_layers_mounted_are_not_evicted") {
  add_image(1);
  Step user;
  REQUIRE(user.start(TaskMessage::start_known, some_record(), some_record(), digest_of(9)).kind ==
          TaskMessageKind::ready);
  const UniqueFd wish = std::move(sealed_memory_file("request", "E")).value();
  {
    Step step;
    const auto answer = step.start(0, wish, some_record());
    CHECK(said(answer) ==
          "1:18 evict layer " + digest_of(1).str() + ": it is in use| (hint: of import)");
    CHECK(answer.failure.error().kind() == ErrorKind::no_space);
    CHECK(answer.failure.error().sys_errno() == EDQUOT);
  }
  CHECK(user.inside([] { return contents("/file") == "layer 1"; }));
  user.kill_agent();
  // The test holds a descriptor of the namespace with the mount.
  user.leave();
  CHECK(becomes_true([] { return our_loop_devices().empty(); }));
  Step step;
  CHECK(said(step.start(0, wish, some_record())) == "1:19| (hint: of import)");
}

TEST_CASE("layers_are_published_in_parallel_after_verification") {
  fresh_node();
  const UniqueFd wishes = std::move(sealed_memory_file("request", "gbc")).value();
  Step step;
  const auto answer = step.start(0, wishes, some_record());  // the verifiers wait for each other
  CHECK(said(answer) ==
        "103:17|98:18 not a layer written by the converter|"
        "99:18 the verifier failed (hint: see --mem)| (hint: of import)");
  CHECK(fs::exists(SPC_STORE_DIR "/layers/sha256/" + digest_of('g').hex() + ".sqsh"));
  CHECK_FALSE(fs::exists(SPC_STORE_DIR "/layers/sha256/" + digest_of('b').hex() + ".sqsh"));
  CHECK_FALSE(fs::exists(SPC_STORE_DIR "/layers/sha256/" + digest_of('c').hex() + ".sqsh"));
}

TEST_CASE("layer_with_lost_verdict_is_not_published") {
  fresh_node();
  const UniqueFd wishes = std::move(sealed_memory_file("request", "g")).value();
  Step step([](AgentTools& tools) {
    tools.id_map = std::move(describe_id_map(Step::kUser, Step::kUser)).value();
    ::signal(SIGCHLD, SIG_IGN);  // the kernel then keeps no exit status
  });
  CHECK(said(step.start(0, wishes, some_record())) ==
        "103:18 the verifier failed (hint: see --mem)| (hint: of import)");
  CHECK_FALSE(fs::exists(SPC_STORE_DIR "/layers/sha256/" + digest_of('g').hex() + ".sqsh"));
}

TEST_CASE("record_is_published_when_the_verifier_accepts_it") {
  fresh_node();
  const UniqueFd wishes = std::move(sealed_memory_file("request", "GB")).value();
  Step step;
  CHECK(said(step.start(0, wishes, some_record())) ==
        "66:18 its record does not match its manifest|71:19| (hint: of import)");
  const fs::path records = SPC_STORE_DIR "/records";
  CHECK(contents(records / digest_of('G').hex()) == "G");
  CHECK_FALSE(fs::exists(records / digest_of('B').hex()));
}

TEST_CASE("record_that_is_refused_leaves_the_one_before") {
  fresh_node();
  const fs::path record = SPC_STORE_DIR "/records/" + digest_of('B').hex();
  write(record, "true");
  const UniqueFd wishes = std::move(sealed_memory_file("request", "B")).value();
  Step step;
  CHECK(says(step.start(0, wishes, some_record()), "does not match its manifest"));
  CHECK(contents(record) == "true");
}

TEST_CASE("layer_without_verifier_is_not_published") {
  fresh_node();
  const std::string verifier = own_program("layer-verifier");
  REQUIRE(::mount("/dev/null", verifier.c_str(), nullptr, MS_BIND, nullptr) == 0);
  const UniqueFd wishes = std::move(sealed_memory_file("request", "g")).value();
  {
    Step step;
    const auto answer = step.start(0, wishes, some_record());
    CHECK(says(answer, "103:18 start"));
    CHECK(says(answer, "layer-verifier"));
  }
  CHECK(fs::is_empty(SPC_STORE_DIR "/layers/sha256"));
  REQUIRE(::umount(verifier.c_str()) == 0);
}

TEST_CASE("tmpfs_pages_of_killed_step_stay_with_the_keeper") {
  add_image(1);
  Step step;
  REQUIRE(step.start(TaskMessage::start_known, some_record(), some_record(), digest_of(9)).kind ==
          TaskMessageKind::ready);
  CHECK(step.inside([] {
    std::ofstream("/big") << std::string(std::size_t{8} << 20, 'x');
    return fs::file_size("/big") == std::size_t{8} << 20;
  }));
  step.kill_agent();
  step.leave();
  CHECK(becomes_true(
      [] { return our_loop_devices().empty(); }));  // the container's mount namespace is gone
  CHECK(step.used_bytes_of_kept_tmpfs() >= std::size_t{8} << 20);
}

TEST_CASE("agent_killed_at_any_moment_leaves_nothing") {
  add_image(2);
  const std::string mounts = contents("/proc/self/mountinfo");
  for (int half_ms = 0; half_ms < 40; ++half_ms) {
    const bool by_fuse = half_ms % 2 == 0;
    Step step(by_fuse ? serve_by_fuse : [](AgentTools&) {});
    step.order(TaskMessage::start_known, some_record(), some_record(), digest_of(9));
    ::usleep(static_cast<useconds_t>(half_ms) * 500);
    step.kill_agent();
    step.leave();
    CHECK(becomes_true([] { return running("fuse") == 0 && our_loop_devices().empty(); }));
  }
  CHECK(contents("/proc/self/mountinfo") == mounts);
}
