#include "image/store/store_files.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <chrono>
#include <filesystem>

#include "image/store/store.hpp"
#include "unit/image/helpers.hpp"
#include "unit/test.hpp"

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

TEST_CASE(
    "a file is replaced in bounded time whoever holds the directory's lock, and whatever he has "
    "left there") {
  const TemporaryDirectory directory;
  const auto ours = directory.open();
  REQUIRE(write_named(ours.get(), "name", "first", Durable::no));
  REQUIRE(write_named(ours.get(), "name", "second", Durable::no));
  // Another import, stopped between its link and its rename.
  const auto stopped = directory.open();
  REQUIRE(::flock(stopped.get(), LOCK_EX | LOCK_NB) == 0);
  REQUIRE(write_named(ours.get(), ".name", "of the stopped one", Durable::no));
  const auto began = std::chrono::steady_clock::now();
  REQUIRE(write_named(ours.get(), "name", "third", Durable::no));
  CHECK(std::chrono::steady_clock::now() - began <
        std::chrono::seconds(10));  // the lock is waited for for one
  CHECK(read_named(ours.get(), "name", 100).value() == "third");
  CHECK_FALSE(std::filesystem::exists(directory.path / ".name"));
}

TEST_CASE("who waits for a layer sees the pulse of who brings it, and not his own") {
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
  // It is no lock of the layer's.
  first.pulse(digest_of('1'), true);
  CHECK(second.try_lock(digest_of('1')).value());
}
