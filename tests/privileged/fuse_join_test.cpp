// Two servers of one mount, as for two steps in one container: either may end without an effect on
// readers.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "files.hpp"
#include "fuse_server.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kFiles = 40, kSize = 200'000;

std::string content_of(std::size_t file) {
  return std::string(kSize, static_cast<char>('A' + file % 26));
}

/// Threads that read files of a mount until stopped. The kernel requests the data again at each
/// read.
class Readers {
 public:
  explicit Readers(const fs::path& root) {
    for (std::size_t first = 0; first < 4; ++first)
      threads_.emplace_back([this, root, first] { read(root, first * 10); });
  }
  ~Readers() { stop(); }
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  void stop() {
    stop_ = true;
    threads_.clear();
  }
  [[nodiscard]] unsigned wrong() const { return wrong_; }
  /// Returns the first error.
  [[nodiscard]] const char* how() const { return how_; }
  void await(unsigned more) const {
    for (const unsigned until = done_ + more; done_ < until && wrong_ == 0;) ::usleep(100);
  }

 private:
  void read(const fs::path& root, std::size_t number) {
    std::string got(kSize + 1, '\0');
    for (; !stop_; ++number) {
      const std::size_t file = number % kFiles;
      const UniqueFd opened(::open((root / std::to_string(file)).c_str(), O_RDONLY | O_CLOEXEC));
      const ssize_t size = opened ? ::read(opened.get(), got.data(), got.size()) : -1;
      const int error = errno;
      const bool is_right =
          size == static_cast<ssize_t>(kSize) && got.compare(0, kSize, content_of(file)) == 0;
      if (!is_right && ++wrong_ == 1) {
        const std::string how = (opened ? "" : "not open, ") + std::to_string(file) + ": " +
                                std::to_string(size) + " bytes, errno " + std::to_string(error);
        how.copy(how_, sizeof how_ - 1);
      }
      ::posix_fadvise(opened.get(), 0, 0, POSIX_FADV_DONTNEED);
      ++done_;
    }
  }

  std::atomic<bool> stop_ = false;
  std::atomic<unsigned> done_ = 0, wrong_ = 0;
  char how_[100] = {};
  std::vector<std::jthread> threads_;
};

void make_image(const ImageScene& scene) {
  for (std::size_t file = 0; file < kFiles; ++file)
    write(scene.tree / std::to_string(file), content_of(file));
  make_squashfs(scene.tree, scene.image);
}

}  // namespace

TEST_CASE("fuse_either_of_two_servers_can_finish_during_reads") {
  const ImageScene scene;
  make_image(scene);
  for (int round = 0; round < 20; ++round) {
    INFO(round);
    auto first = FuseServer::start(scene.image).value();
    auto second = first.join().value();
    Readers readers(first.root());
    readers.await(50);
    CHECK((round % 2 == 0 ? first : second).finish() == 0);
    readers.await(50);
    INFO(readers.how());
    CHECK(readers.wrong() == 0);
    auto third = (round % 2 == 0 ? second : first).join().value();
    readers.await(20);
    CHECK((round % 2 == 0 ? second : first).finish() == 0);
    readers.await(50);
    readers.stop();
    CHECK(readers.wrong() == 0);
    first.unmount();  // the third server ends with it
  }
}

TEST_CASE("fuse_first_kernel_request_goes_to_first_server") {
  const ImageScene scene;
  make_image(scene);
  auto first = FuseServer::start(scene.image, 0, 4242, FuseServer::Mount::held).value();
  auto joined = std::async(std::launch::async, [&] { return first.join(); });
  joined.wait_for(std::chrono::seconds(2));
  first.let_go();
  const auto second = joined.get().value();
  std::error_code error;
  CHECK(fs::file_size(first.root() / "7", error) == kSize);
  CHECK(error == std::error_code());
}

TEST_CASE("fuse_joining_server_may_be_absent_when_first_finishes") {
  const ImageScene scene;
  make_image(scene);
  auto first = FuseServer::start(scene.image).value();
  CHECK(first.join().value().finish() == 0);
  CHECK(contents(first.root() / "8") == content_of(8));
  auto second = first.join().value();
  ::kill(second.pid(), SIGKILL);
  CHECK(second.end().has_value());
  CHECK(contents(first.root() / "9") == content_of(9));
}

TEST_CASE("fuse_second_server_continues_when_first_is_killed") {
  const ImageScene scene;
  make_image(scene);
  auto first = FuseServer::start(scene.image).value();
  auto second = first.join().value();
  ::kill(first.pid(), SIGKILL);
  ::usleep(50'000);
  CHECK(contents(first.root() / "7") == content_of(7));
  CHECK(second.finish() == 0);
  const UniqueFd gone(::open((first.root() / "8").c_str(), O_RDONLY | O_CLOEXEC));
  CHECK((!gone && errno == ENOTCONN));
}

TEST_CASE("fuse_two_servers_end_with_the_mount") {
  const ImageScene scene;
  make_image(scene);
  auto first = FuseServer::start(scene.image).value();
  auto second = first.join().value();
  CHECK(first.end() == 0);
  CHECK(second.end() == 0);
}
