#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "agent/builder/loop_device.hpp"
#include "agent/builder/mount.hpp"
#include "agent/node/privilege.hpp"
#include "unit/catch.hpp"
#include "files.hpp"
#include "loop_devices.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

namespace {

const fs::path kWork = "/var/lib/loop-test";

/// A squashfs file with one file of root in it.
UniqueFd squashfs_file(const std::string& name) {
  const fs::path tree = kWork / (name + ".tree");
  fs::create_directories(tree);
  std::ofstream(tree / name) << name;
  const std::string command =
      "mksquashfs " + tree.string() + " " + (kWork / name).string() + " -all-root -noappend -quiet -no-progress >/dev/null";
  REQUIRE(std::system(command.c_str()) == 0);
  UniqueFd file(::open((kWork / name).c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(file);
  return file;
}

UniqueFd fresh_table() {
  fs::remove_all(kWork);
  fs::create_directories(kWork);
  return std::move(open_loop_table((kWork / "loops").c_str())).value();
}

bool is_ours(int number) {
  const auto ours = our_loop_devices();
  return std::find(ours.begin(), ours.end(), number) != ours.end();
}

/// Autoclear happens when the last user has closed the device, a moment later for a mount that is gone.
bool becomes_free(int number) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (!is_ours(number)) return true;
    ::usleep(20'000);
  }
  return false;
}

}  // namespace

TEST_CASE("two users of a layer share its loop device, and the last one frees it") {
  const auto table = fresh_table();
  const auto file = squashfs_file("a");
  int number = -1;
  {
    const auto first = std::move(loop_device_of(digest_of(1), file.get(), table.get())).value();
    const auto second = std::move(loop_device_of(digest_of(1), file.get(), table.get())).value();
    CHECK_FALSE(first.shared);
    CHECK(second.shared);
    CHECK(first.number == second.number);
    number = first.number;
  }
  CHECK(becomes_free(number));
}

TEST_CASE("a hint that names another file's device is not believed") {
  const auto table = fresh_table();
  const auto a = squashfs_file("a");
  const auto b = squashfs_file("b");
  const auto device_of_a = std::move(loop_device_of(digest_of(1), a.get(), table.get())).value();
  // The same digest, hence the same slot, with another file: as after an eviction and a new import.
  const auto device_of_b = std::move(loop_device_of(digest_of(1), b.get(), table.get())).value();
  CHECK_FALSE(device_of_b.shared);
  CHECK(device_of_b.number != device_of_a.number);
}

TEST_CASE("a table full of rubbish costs the sharing and nothing else") {
  const auto table = fresh_table();
  const auto file = squashfs_file("a");
  const std::string rubbish(1 << 20, '\xff');
  REQUIRE(::pwrite(table.get(), rubbish.data(), rubbish.size(), 0) > 0);
  CHECK(loop_device_of(digest_of(0), file.get(), table.get()));
}

TEST_CASE("a layer's files belong to the user it is mapped to, and its mount is read-only, nosuid, nodev") {
  const auto table = fresh_table();
  const auto file = squashfs_file("a");
  const auto id_map = std::move(describe_id_map(2001, 2100)).value();
  const auto loop = std::move(loop_device_of(digest_of(1), file.get(), table.get())).value();
  const auto mount = std::move(new_squashfs("/dev/loop" + std::to_string(loop.number), id_map.get())).value();
  struct stat status {};
  REQUIRE(::fstatat(mount.get(), "a", &status, 0) == 0);
  CHECK(status.st_uid == 2001);
  CHECK(status.st_gid == 2100);
  CHECK(::openat(mount.get(), "a", O_WRONLY) == -1);
  fs::create_directories(kWork / "here");
  const UniqueFd here(::open((kWork / "here").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(attach(UniqueFd(::fcntl(mount.get(), F_DUPFD_CLOEXEC, 3)), here.get()));
  std::ifstream table_of_mounts("/proc/self/mountinfo");
  std::string line;
  std::string flags;
  while (std::getline(table_of_mounts, line)) {
    if (line.find((kWork / "here").string() + " ") != std::string::npos) flags = line;
  }
  CHECK(flags.find(" ro,nosuid,nodev") != std::string::npos);
  CHECK(::umount2((kWork / "here").c_str(), MNT_DETACH) == 0);
}

TEST_CASE("what is not a squashfs is refused with the kernel's reason") {
  const auto table = fresh_table();
  std::ofstream(kWork / "noise") << std::string(8192, 'x');
  const UniqueFd file(::open((kWork / "noise").c_str(), O_RDONLY | O_CLOEXEC));
  const auto loop = std::move(loop_device_of(digest_of(3), file.get(), table.get())).value();
  const auto mount = new_squashfs("/dev/loop" + std::to_string(loop.number), -1);
  REQUIRE_FALSE(mount);
  CHECK(mount.error().sys_errno() == EINVAL);
}

TEST_CASE("a kernel that cannot map the owners of a squashfs is told apart from every other failure") {
  const auto table = fresh_table();
  const auto file = squashfs_file("a");
  const auto loop = std::move(loop_device_of(digest_of(1), file.get(), table.get())).value();
  // What is no user namespace is answered as Linux before 6.2 answers everything: EINVAL.
  const UniqueFd no_map(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  const auto mount = new_squashfs("/dev/loop" + std::to_string(loop.number), no_map.get());
  REQUIRE_FALSE(mount);
  CHECK(mount.error().sys_errno() == EOPNOTSUPP);
}

TEST_CASE("a layer whose loop device another step set up stays locked until the last step has ended") {
  const auto table = fresh_table();
  const std::string path = (kWork / "a").string();
  auto first_file = squashfs_file("a");
  const auto evictable = [&] {
    const UniqueFd evictor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return ::flock(evictor.get(), LOCK_EX | LOCK_NB) == 0;
  };
  REQUIRE(::flock(first_file.get(), LOCK_SH | LOCK_NB) == 0);
  auto first = std::move(loop_device_of(digest_of(1), first_file.get(), table.get())).value();
  first_file.reset();
  CHECK_FALSE(evictable());
  UniqueFd second_file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  auto second = std::move(loop_device_of(digest_of(1), second_file.get(), table.get())).value();
  REQUIRE(second.shared);
  second_file.reset();
  auto mount = std::move(new_squashfs("/dev/loop" + std::to_string(second.number), -1)).value();
  first.device.reset();
  second.device.reset();
  CHECK_FALSE(evictable());
  mount.reset();
  CHECK(becomes_free(second.number));
  CHECK(evictable());
}
