#include "image/store/store.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <chrono>
#include <filesystem>

#include "unit/catch2_compat.hpp"
#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

struct TemporaryDirectory {
  std::filesystem::path path;
  TemporaryDirectory() {
    char name[] = "/tmp/spc-store-files-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
  [[nodiscard]] UniqueFd open() const {
    return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
};

}  // namespace

TEST_CASE("store_file_is_replaced_despite_held_lock") {
  const TemporaryDirectory directory;
  const auto ours = directory.open();
  REQUIRE(write_named(ours.get(), "name", "first", Durable::no));
  REQUIRE(write_named(ours.get(), "name", "second", Durable::no));
  // Simulate another import, stopped between its link and its rename.
  const auto stopped = directory.open();
  REQUIRE(::flock(stopped.get(), LOCK_EX | LOCK_NB) == 0);
  REQUIRE(write_named(ours.get(), ".name", "of the stopped one", Durable::no));
  const auto began = std::chrono::steady_clock::now();
  REQUIRE(write_named(ours.get(), "name", "third", Durable::no));
  CHECK(std::chrono::steady_clock::now() - began <
        std::chrono::seconds(10));  // the lock is awaited for one second
  CHECK(read_named(ours.get(), "name", 100).value() == "third");
  CHECK_FALSE(std::filesystem::exists(directory.path / ".name"));
}

TEST_CASE("store_waiter_sees_heartbeat_of_importer") {
  const TemporaryDirectory directory;
  for (const char* part : {"layers/sha256", "records", "names", "grants", "images"})
    std::filesystem::create_directories(directory.path / part);
  const auto first_root = directory.open();
  const auto second_root = directory.open();
  const auto first = ImageStore::open(first_root.get()).value();
  const auto second = ImageStore::open(second_root.get()).value();
  CHECK_FALSE(second.pulse_of_others(digest_of('1')));
  first.pulse(digest_of('1'), true);
  CHECK(second.pulse_of_others(digest_of('1')));
  CHECK_FALSE(second.pulse_of_others(digest_of('2')));
  CHECK_FALSE(first.pulse_of_others(digest_of('1')));
  first.pulse(digest_of('1'), false);
  CHECK_FALSE(second.pulse_of_others(digest_of('1')));
  // The heartbeat is not a lock of the layer.
  first.pulse(digest_of('1'), true);
  CHECK(second.try_lock(digest_of('1')).value());
}
