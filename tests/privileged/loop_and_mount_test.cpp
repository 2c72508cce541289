#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "agent/builder.hpp"
#include "agent/privilege.hpp"
#include "files.hpp"
#include "loop_devices.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/image/samples/layer_image.hpp"
#include "unit/image/samples/layer_tar.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

namespace {

const fs::path kWork = "/var/lib/loop-test";

Result<LoopDevice> loop_device_of(int file) {
  return agent::loop_device_of({UniqueFd(::dup(file)), {}}, {});
}

Result<DetachedMount> new_layer(int file, int id_map, std::uint32_t& shared) {
  return agent::new_layer({UniqueFd(::dup(file)), {}}, {.id_map = id_map}, shared);
}

/// Creates a squashfs file that contains one file of root.
UniqueFd squashfs_file(const std::string& name) {
  const fs::path tree = kWork / (name + ".tree");
  fs::create_directories(tree);
  std::ofstream(tree / name) << name;
  const std::string command = "mksquashfs " + tree.string() + " " + (kWork / name).string() +
                              " -all-root -noappend -quiet -no-progress >/dev/null";
  REQUIRE(std::system(command.c_str()) == 0);
  UniqueFd file(::open((kWork / name).c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(file);
  return file;
}

constexpr char kHint[] = "trusted.spank-container.loop";

void fresh_work() {
  fs::remove_all(kWork);
  fs::create_directories(kWork);
}

bool is_ours(int number) {
  const auto ours = our_loop_devices();
  return std::find(ours.begin(), ours.end(), number) != ours.end();
}

/// Waits for autoclear. It happens when the last user closes the device, a moment later after an
/// unmount.
bool becomes_free(int number) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (!is_ours(number)) return true;
    ::usleep(20'000);
  }
  return false;
}

}  // namespace

TEST_CASE("loop_device_is_shared_and_freed_by_last_user") {
  fresh_work();
  const auto file = squashfs_file("a");
  int number = -1;
  {
    const auto first = std::move(loop_device_of(file.get())).value();
    const auto second = std::move(loop_device_of(file.get())).value();
    CHECK_FALSE(first.shared);
    CHECK(second.shared);
    CHECK(first.number == second.number);
    number = first.number;
  }
  CHECK(becomes_free(number));
}

TEST_CASE("loop_hint_for_another_file_is_ignored") {
  fresh_work();
  const auto a = squashfs_file("a");
  const auto b = squashfs_file("b");
  const auto device_of_a = std::move(loop_device_of(a.get())).value();
  REQUIRE(::fsetxattr(b.get(), kHint, &device_of_a.number, sizeof device_of_a.number, 0) == 0);
  const auto device_of_b = std::move(loop_device_of(b.get())).value();
  CHECK_FALSE(device_of_b.shared);
  CHECK(device_of_b.number != device_of_a.number);
}

TEST_CASE("loop_hint_of_garbage_costs_only_sharing") {
  fresh_work();
  const auto file = squashfs_file("a");
  for (const std::string rubbish :
       {"\xff\xff\xff\xff", "\xff\xff\xff\x7f", "x", "much too long for a number"}) {
    REQUIRE(::fsetxattr(file.get(), kHint, rubbish.data(), rubbish.size(), 0) == 0);
    const auto loop = loop_device_of(file.get());
    REQUIRE(loop);
    CHECK_FALSE(loop->shared);
  }
}

TEST_CASE("loop_hints_stay_few_with_many_owners") {
  fresh_work();
  const std::string disk = (kWork / "disk").string(), store = (kWork / "mnt").string();
  fs::create_directories(store);
  // Make the smallest image that mkfs.xfs accepts, with holes.
  REQUIRE(std::system(("truncate -s 300M " + disk + " && mkfs.xfs -q " + disk +
                       " && mount -o loop " + disk + " " + store)
                          .c_str()) == 0);
  for (const char* part : {"images", "layers/sha256", "records"})
    fs::create_directories(fs::path(store) / part);
  {
    const auto opened = std::move(ImageStore::open(store.c_str())).value();
    test::Tar tar;
    tar.file("small", "small");
    const auto layer = test::convert(
        test::gzip(tar.end()), 0,
        {.compression = LayerCompression::lz4, .format = LayerFormat::owned_squashfs});
    REQUIRE(layer.layer);
    const UniqueFd file(::open((store + "/layer").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    std::string bytes(1 << 16, '\0');
    const ssize_t size = ::pread(layer.file.get(), bytes.data(), bytes.size(), 0);
    REQUIRE(size > 0);
    REQUIRE(::pwrite(file.get(), bytes.data(), static_cast<std::size_t>(size), 0) == size);
    for (uid_t uid = 5000; uid < 5100; ++uid) {
      const auto loop = agent::loop_device_of({UniqueFd(::dup(file.get())), {}},
                                              {.store = &opened, .uid = uid, .gid = uid});
      REQUIRE(loop);
      CHECK_FALSE(loop->shared);
      const auto again = agent::loop_device_of({UniqueFd(::dup(file.get())), {}},
                                               {.store = &opened, .uid = uid, .gid = uid});
      REQUIRE(again);
      CHECK(again->shared);
    }
    std::string names(1 << 16, '\0');
    const ssize_t listed = ::flistxattr(file.get(), names.data(), names.size());
    REQUIRE(listed > 0);
    CHECK(std::count(names.begin(), names.begin() + listed, '\0') <= 32);
  }
  CHECK(std::system(("umount " + store).c_str()) == 0);
}

TEST_CASE("loop_device_is_shared_by_concurrent_steps") {
  fresh_work();
  const auto file = squashfs_file("a");
  constexpr int kSteps = 8;
  int begin[2], said[2], stop[2];
  REQUIRE((::pipe(begin) == 0 && ::pipe(said) == 0 && ::pipe(stop) == 0));
  for (int i = 0; i < kSteps; ++i) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child > 0) continue;
    ::close(begin[1]);
    ::close(stop[1]);
    char end = 0;
    (void)!::read(begin[0], &end, 1);
    const auto loop = loop_device_of(file.get());
    const int number = loop ? loop->number : -1;
    (void)!::write(said[1], &number, sizeof number);
    (void)!::read(stop[0], &end, 1);
    ::_exit(0);
  }
  ::close(begin[1]);
  std::vector<int> numbers(kSteps, -1);
  for (int& number : numbers) CHECK(::read(said[0], &number, sizeof number) == sizeof number);
  CHECK(numbers.front() >= 0);
  CHECK(std::count(numbers.begin(), numbers.end(), numbers.front()) == kSteps);
  ::close(stop[1]);
  for (int i = 0; i < kSteps; ++i) ::wait(nullptr);
  CHECK(becomes_free(numbers.front()));
}

TEST_CASE("layer_mount_maps_owner_read_only_nosuid_nodev") {
  fresh_work();
  const auto file = squashfs_file("a");
  const auto id_map = std::move(describe_id_map(2001, 2100)).value();
  std::uint32_t shared = 0;
  const auto mount = std::move(new_layer(file.get(), id_map.get(), shared)).value();
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

TEST_CASE("erofs_layer_mount_maps_owner") {
  fresh_work();
  test::Tar tar;
  tar.file("small", "small").file("large", std::string(300'000, 'l')).directory("d/", 0750);
  const auto layer =
      test::convert(test::gzip(tar.end()), 0,
                    {.compression = LayerCompression::lz4, .format = LayerFormat::erofs});
  REQUIRE(layer.layer);
  const auto id_map = std::move(describe_id_map(2001, 2100)).value();
  std::uint32_t shared = 0;
  const auto mount = std::move(new_layer(layer.file.get(), id_map.get(), shared)).value();
  for (const char* name : {"small", "large", "d", "."}) {
    struct stat status {};
    REQUIRE(::fstatat(mount.get(), name, &status, 0) == 0);
    CHECK(status.st_uid == 2001);
    CHECK(status.st_gid == 2100);
  }
  const UniqueFd large(::openat(mount.get(), "large", O_RDONLY | O_CLOEXEC));
  std::string text(300'000, '\0');
  CHECK(::pread(large.get(), text.data(), text.size(), 0) == 300'000);
  CHECK(text == std::string(300'000, 'l'));
}

TEST_CASE("squashfs_containing_erofs_magic_is_mounted_as_squashfs") {
  fresh_work();
  fs::create_directories(kWork / "tree");
  std::ofstream data(kWork / "tree" / "data");
  // The magic number, therefore also at 1024.
  for (int i = 0; i < 2000; ++i) data.write("\xe2\xe1\xf5\xe0", 4);
  data.close();
  const std::string image = (kWork / "image").string();
  const std::string command = "mksquashfs " + (kWork / "tree").string() + " " + image +
                              " -all-root -noappend -quiet -no-progress -noD -noF >/dev/null";
  REQUIRE(std::system(command.c_str()) == 0);
  const UniqueFd file(::open(image.c_str(), O_RDONLY | O_CLOEXEC));
  std::uint32_t at_1024 = 0;
  REQUIRE(::pread(file.get(), &at_1024, 4, 1024) == 4);
  REQUIRE(at_1024 == EROFS_SUPER_MAGIC_V1);
  std::uint32_t shared = 0;
  const auto mount = std::move(new_layer(file.get(), -1, shared)).value();
  struct statfs status {};
  REQUIRE(::fstatfs(mount.get(), &status) == 0);
  CHECK(status.f_type == SQUASHFS_MAGIC);
}

TEST_CASE("mount_of_other_format_has_its_own_error") {
  fresh_work();
  std::ofstream(kWork / "noise") << std::string(8192, 'x');
  const UniqueFd file(::open((kWork / "noise").c_str(), O_RDONLY | O_CLOEXEC));
  std::uint32_t shared = 0;
  const auto mount = new_layer(file.get(), -1, shared);
  REQUIRE_FALSE(mount);
  CHECK(mount.error().sys_errno() == EOPNOTSUPP);
}

TEST_CASE("mount_without_id_mapping_has_its_own_error") {
  fresh_work();
  const auto file = squashfs_file("a");
  // A descriptor that is not a user namespace gives EINVAL, as any does before Linux 6.2.
  const UniqueFd no_map(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  std::uint32_t shared = 0;
  const auto mount = new_layer(file.get(), no_map.get(), shared);
  REQUIRE_FALSE(mount);
  CHECK(mount.error().sys_errno() == EOPNOTSUPP);
}

TEST_CASE("layer_stays_locked_until_last_step_ends") {
  fresh_work();
  const std::string path = (kWork / "a").string();
  auto first_file = squashfs_file("a");
  const auto evictable = [&] {
    const UniqueFd evictor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return ::flock(evictor.get(), LOCK_EX | LOCK_NB) == 0;
  };
  REQUIRE(::flock(first_file.get(), LOCK_SH | LOCK_NB) == 0);
  auto first = std::move(loop_device_of(first_file.get())).value();
  first_file.reset();
  CHECK_FALSE(evictable());
  UniqueFd second_file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  auto second = std::move(loop_device_of(second_file.get())).value();
  REQUIRE(second.shared);
  std::uint32_t shared = 0;
  auto mount = std::move(new_layer(second_file.get(), -1, shared)).value();
  CHECK(shared == 1);
  second_file.reset();
  first.device.reset();
  second.device.reset();
  CHECK_FALSE(evictable());
  mount.reset();
  CHECK(becomes_free(second.number));
  CHECK(evictable());
}
