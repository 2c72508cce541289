#include "pinned_pages.hpp"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "agent/node_setup.hpp"
#include "base/file.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "files.hpp"
#include "protocol/import.hpp"
#include "scene.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kObject = 3, kPublish = 4,
                        kWritten = 13;  // requests a file to write

/// A file system with one file, "pages", without the page cache. Reads are answered with "e" after
/// answer() or after five seconds.
class SlowFiles {
 public:
  explicit SlowFiles(const fs::path& directory)
      : directory_(directory), device_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    fs::create_directories(directory);
    const std::string options =
        "fd=" + std::to_string(device_.get()) + ",rootmode=40000,user_id=0,group_id=0,allow_other";
    REQUIRE(::mount("slow", directory.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0);
    server_ = std::thread([this] { serve(); });
  }
  ~SlowFiles() {
    answer();
    ::umount2(directory_.c_str(), MNT_DETACH | MNT_FORCE);
    server_.join();
  }
  SlowFiles(const SlowFiles&) = delete;
  SlowFiles& operator=(const SlowFiles&) = delete;

  void answer() { may_answer_ = true; }
  [[nodiscard]] int reads() const { return reads_; }
  [[nodiscard]] int answered() const { return answered_; }

 private:
  void reply(std::uint64_t id, int error, const void* body = nullptr, std::size_t size = 0) const {
    const fuse_out_header header{
        .len = static_cast<std::uint32_t>(sizeof header + size), .error = -error, .unique = id};
    std::vector<char> bytes(sizeof header + size);
    std::memcpy(bytes.data(), &header, sizeof header);
    if (size > 0) std::memcpy(bytes.data() + sizeof header, body, size);
    [[maybe_unused]] const auto written = ::write(device_.get(), bytes.data(), bytes.size());
  }
  static fuse_attr attributes(std::uint64_t node) {
    fuse_attr attr{};
    attr.ino = node;
    attr.mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0444;
    attr.nlink = 1;
    attr.size = node == 1 ? 0 : kPage;
    return attr;
  }
  void serve() {
    std::vector<char> request(1 << 17);
    std::vector<std::uint64_t> waiting;
    for (;;) {
      if (may_answer_ || (!waiting.empty() &&
                          std::chrono::steady_clock::now() - read_at_ > std::chrono::seconds(5))) {
        const std::string evil(kPage, 'e');
        for (const std::uint64_t id : waiting) reply(id, 0, evil.data(), evil.size()), ++answered_;
        waiting.clear();
      }
      pollfd one{device_.get(), POLLIN, 0};
      if (::poll(&one, 1, 10) == 0) continue;
      if (::read(device_.get(), request.data(), request.size()) <= 0) {
        if (errno == ENODEV) return;
        continue;
      }
      fuse_in_header in{};
      std::memcpy(&in, request.data(), sizeof in);
      handle(in, waiting);
    }
  }
  void handle(const fuse_in_header& in, std::vector<std::uint64_t>& waiting) {
    fuse_init_out init{};
    init.major = FUSE_KERNEL_VERSION, init.minor = 31, init.max_readahead = kPage,
    init.max_write = kPage;
    fuse_entry_out entry{};
    entry.nodeid = 2, entry.attr = attributes(2);
    fuse_attr_out attr{};
    attr.attr = attributes(in.nodeid);
    fuse_open_out open{};
    open.open_flags = FOPEN_DIRECT_IO;
    switch (in.opcode) {
      case FUSE_INIT: return reply(in.unique, 0, &init, sizeof init);
      case FUSE_LOOKUP: return reply(in.unique, 0, &entry, sizeof entry);
      case FUSE_GETATTR: return reply(in.unique, 0, &attr, sizeof attr);
      case FUSE_OPEN: return reply(in.unique, 0, &open, sizeof open);
      case FUSE_READ:
        waiting.push_back(in.unique), ++reads_, read_at_ = std::chrono::steady_clock::now();
        return;
      case FUSE_FORGET: return;
      case FUSE_FLUSH:
      case FUSE_RELEASE: return reply(in.unique, 0);
      default: return reply(in.unique, ENOSYS);
    }
  }

  fs::path directory_;
  UniqueFd device_;
  std::atomic<bool> may_answer_ = false;
  std::atomic<int> reads_ = 0, answered_ = 0;
  std::chrono::steady_clock::time_point read_at_;
  std::thread server_;
};

/// Maps the first page of the file, shared and writable, by any available method.
void* map_for_writing(int file) {
  const UniqueFd again(
      ::open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDWR | O_CLOEXEC));
  for (const int one : {file, again.get()}) {
    void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, one, 0);
    if (page != MAP_FAILED) return page;
  }
  void* const page = ::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file, 0);
  return page != MAP_FAILED && ::mprotect(page, kPage, PROT_READ | PROT_WRITE) == 0 ? page
                                                                                    : MAP_FAILED;
}

struct Received {
  ImportMessage message;
  std::vector<UniqueFd> descriptors;
};

Received receive(int socket) {
  Received received;
  auto descriptors = receive_struct(socket, received.message, 3);
  if (descriptors) received.descriptors = *std::move(descriptors);
  return received;
}

void send(int socket, std::uint32_t kind, char digest = 0, std::span<const int> passed = {}) {
  ImportMessage message{.kind = static_cast<ImportMessageKind>(kind), .digest = {}};
  message.digest.bytes.fill(static_cast<unsigned char>(digest));
  if (kind == kObject) message.text.set("copy");
  (void)send_struct(socket, message, passed);
}

}  // namespace

std::string spc::hang_in_read() {
  const UniqueFd slow(::open((own_program(kSlowFiles) + "/pages").c_str(), O_RDONLY | O_CLOEXEC));
  if (!slow) return "the slow file cannot be opened";
  static std::array<char, kPage> page;
  std::thread([slow = ::fcntl(slow.get(), F_DUPFD_CLOEXEC, 0)] {
    [[maybe_unused]] const auto size = ::read(slow, page.data(), kPage);
  }).detach();
  ::usleep(300'000);
  return "hangs";
}

std::string spc::pin_pages() {
  const std::string good(2 * kPage, 'g');
  send(kImportSocket, kObject);
  Received got = receive(kImportSocket);
  if (got.descriptors.empty()) return "no answer";
  UniqueFd publisher, file;
  struct stat status {};
  if (::fstat(got.descriptors[0].get(), &status) == 0 && S_ISREG(status.st_mode)) {
    file = std::move(got.descriptors[0]);
    (void)write_all(file.get(), good);
  } else {
    publisher = std::move(got.descriptors[0]);
    Received writer = receive(publisher.get());
    if (writer.descriptors.size() != 3) return "no writer";
    (void)write_all(writer.descriptors[0].get(), good);
    writer.descriptors[0].reset();
    char some = 0;
    while (::read(writer.descriptors[1].get(), &some, 1) > 0) continue;
    send(publisher.get(), kWritten);
    Received ended = receive(publisher.get());
    if (ended.descriptors.size() != 1) return "no file";
    file = std::move(ended.descriptors[0]);
  }

  const UniqueFd slow(::open((own_program(kSlowFiles) + "/pages").c_str(), O_RDONLY | O_CLOEXEC));
  if (!slow) return "the slow file cannot be opened";
  void* const page = map_for_writing(file.get());
  std::string said = page == MAP_FAILED ? "no page was mapped" : "a page was pinned";
  if (page != MAP_FAILED) {
    std::thread([page, slow = slow.get()] {
      [[maybe_unused]] const auto size = ::read(slow, page, kPage);
    }).detach();
    ::usleep(200'000);
    ::munmap(page, kPage);
  }
  const UniqueFd reader(
      ::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC));
  file.reset();
  const int passed[] = {reader.get()};
  send(publisher ? publisher.get() : kImportSocket, kPublish, 'g',
       std::span(passed, publisher ? 0 : 1));
  const Received answer = receive(publisher ? publisher.get() : kImportSocket);
  said += answer.message.kind == ImportMessageKind::published ? ", published" : ", refused";
  return said;
}

TEST_CASE("layer_with_pinned_pages_keeps_verified_bytes") {
  fs::remove_all(SPC_STORE_DIR);
  fs::remove_all(SPC_RUN_DIR);
  REQUIRE(set_up_node(12345, 12345));
  SlowFiles slow(own_program(kSlowFiles));
  const std::string layer = SPC_STORE_DIR "/layers/sha256/" + digest_of('g').hex() + ".sqsh";
  const UniqueFd request = std::move(sealed_memory_file("request", kPinPages)).value();
  const UniqueFd record = std::move(sealed_memory_file("record", "settings")).value();
  Step step;
  const auto answer = step.start(0, request, record);
  REQUIRE(answer.failure.is_set());
  const std::string said = answer.failure.error().message();
  CAPTURE(said);
  CHECK(said.find("published") != std::string::npos);
  const auto is_verified = [&] { return contents(layer) == std::string(2 * kPage, 'g'); };
  CHECK(is_verified());
  slow.answer();
  if (slow.reads() > 0) CHECK(becomes_true([&] { return slow.answered() > 0; }));
  ::usleep(100'000);
  CHECK(is_verified());
  CHECK(said.find("no page was mapped") != std::string::npos);
}

TEST_CASE("agent_answers_while_import_cannot_die") {
  fs::remove_all(SPC_STORE_DIR);
  fs::remove_all(SPC_RUN_DIR);
  REQUIRE(set_up_node(12345, 12345));
  SlowFiles slow(own_program(kSlowFiles));
  const UniqueFd request = std::move(sealed_memory_file("request", kHang)).value();
  const UniqueFd record = std::move(sealed_memory_file("record", "settings")).value();
  Step step;
  const auto answer = step.start(0, request, record);
  CHECK(answer.failure.error().message().find("hangs") != std::string::npos);
  CHECK(slow.reads() == 1);
  CHECK(slow.answered() == 0);
}
