#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "files.hpp"
#include "fuse_server.hpp"
#include "scene.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
namespace fs = std::filesystem;

namespace {

/// Returns text that compresses to about half its size.
std::string text_of(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  for (auto& character : text) character = static_cast<char>('a' + random() % 16);
  return text;
}

/// Describes everything in a tree that its mount must show.
std::map<std::string, std::string> described(const fs::path& root) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    struct stat status {};
    REQUIRE(::lstat(entry.path().c_str(), &status) == 0);
    std::ostringstream text;
    text << std::oct << (status.st_mode & ~06000U) << ' ' << std::dec << status.st_mtime << ' ';
    if (!S_ISDIR(status.st_mode)) text << status.st_nlink << ' ' << status.st_size << ' ';
    if (S_ISLNK(status.st_mode)) text << fs::read_symlink(entry.path());
    if (S_ISREG(status.st_mode)) text << std::hash<std::string>()(contents(entry.path()));
    all[entry.path().lexically_relative(root).string()] = text.str();
  }
  return all;
}

std::string first_difference(const std::map<std::string, std::string>& seen,
                             const std::map<std::string, std::string>& expected) {
  for (const auto& [name, text] : expected) {
    const auto found = seen.find(name);
    if (found == seen.end()) return name + " is missing";
    if (found->second != text) return name + " is " + found->second + ", not " + text;
  }
  return seen.size() == expected.size() ? "" : "there is more than there should be";
}

/// Creates a file of each type, and files at the block-size boundaries.
void fill(const fs::path& tree) {
  for (const std::size_t size : {0, 1, 4095, 4096, 4097, 131071, 131072, 131073, 300000, 1048576}) {
    write(tree / "sizes" / std::to_string(size), text_of(size, static_cast<unsigned>(size)));
  }
  for (int i = 0; i < 700; ++i)
    write(tree / "many" / ("a file with number " + std::to_string(i * 7919)), std::to_string(i));
  write(tree / "deep/er/and/deeper/file", "deep");
  write(tree / std::string(255, 'n'), "a long name");
  fs::create_symlink("deep/er", tree / "link");
  std::string far;
  while (far.size() < 4000) far += "nowhere/";
  fs::create_symlink(far, tree / "long link");
  fs::create_hard_link(tree / "sizes/300000", tree / "hard link");
  fs::create_directory(tree / "empty");
  REQUIRE(::mkfifo((tree / "fifo").c_str(), 0600) == 0);
  write(tree / "sparse", "begin");
  fs::resize_file(tree / "sparse", 3 << 20);
  std::ofstream(tree / "sparse", std::ios::app) << "end";
}

}  // namespace

// outcome 133 refused: compressors that are missing
TEST_CASE("fuse_image_content_is_shown_with_every_compressor") {
  const ImageScene scene;
  fill(scene.tree);
  const auto expected = described(scene.tree);
  for (const char* options : {"-comp gzip", "-comp lzo", "-comp lz4", "-comp xz -b 1M",
                              "-comp zstd -b 4K", "-noI -noD -noF -noX", "-comp zstd -no-fragments",
                              "-comp gzip -always-use-fragments -b 1M"}) {
    INFO(options);
    make_squashfs(scene.tree, scene.image, options);
    auto server = FuseServer::start(scene.image).value();
    CHECK(first_difference(described(server.root()), expected) == "");
    CHECK(server.end() == 0);
  }
}

TEST_CASE("fuse_files_belong_to_the_user") {
  const ImageScene scene;
  write(scene.tree / "setuid", "x");
  REQUIRE(::chown((scene.tree / "setuid").c_str(), 12, 34) == 0);
  REQUIRE(::chmod((scene.tree / "setuid").c_str(), 07755) == 0);
  fs::create_directory(scene.tree / "sticky");
  REQUIRE(::chmod((scene.tree / "sticky").c_str(), 03777) == 0);
  make_squashfs(scene.tree, scene.image);
  const auto server = FuseServer::start(scene.image, 0, 4242).value();
  struct stat status {};
  REQUIRE(::stat((server.root() / "setuid").c_str(), &status) == 0);
  CHECK((status.st_uid == 4242 && status.st_gid == 4242));
  CHECK((status.st_mode & 07777U) == 01755);
  REQUIRE(::stat((server.root() / "sticky").c_str(), &status) == 0);
  CHECK((status.st_mode & 07777U) == 01777);
}

TEST_CASE("fuse_server_uses_as_many_threads_as_allowed") {
  constexpr unsigned kNobodyElse = 4243;
  ::signal(SIGALRM, [](int) { ::_exit(1); });
  ::alarm(30);  // ends a wait for a thread that does not exist
  const ImageScene scene;
  write(scene.tree / "file", text_of(300'000, 1));
  make_squashfs(scene.tree, scene.image);
  rlimit limit{};  // of processes and threads
  REQUIRE(::getrlimit(RLIMIT_NPROC, &limit) == 0);
  for (const rlim_t most : {3U, 2U}) {
    limit.rlim_cur = most;
    REQUIRE(::setrlimit(RLIMIT_NPROC, &limit) == 0);
    auto server = FuseServer::start(scene.image, 0, kNobodyElse).value();
    CHECK(contents(server.root() / "file") == text_of(300'000, 1));
    const auto threads = fs::path("/proc") / std::to_string(server.pid()) / "task";
    CHECK(std::distance(fs::directory_iterator(threads), {}) == static_cast<long>(most));
    CHECK(server.end() == 0);
  }
  limit.rlim_cur = 1;
  REQUIRE(::setrlimit(RLIMIT_NPROC, &limit) == 0);
  const auto refused = FuseServer::start(scene.image, 0, kNobodyElse);
  REQUIRE(!refused);
  CHECK(refused.error().message() ==
        "serve a file system: start a thread: resource temporarily unavailable");
}

TEST_CASE("fuse_whiteouts_are_the_only_devices") {
  const ImageScene scene;
  REQUIRE(::mknod((scene.tree / "whiteout").c_str(), S_IFCHR, 0) == 0);
  REQUIRE(::mknod((scene.tree / "null").c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0);
  REQUIRE(::mknod((scene.tree / "disk").c_str(), S_IFBLK | 0666, makedev(8, 0)) == 0);
  make_squashfs(scene.tree, scene.image);
  const auto server = FuseServer::start(scene.image).value();
  struct stat status {};
  REQUIRE(::stat((server.root() / "whiteout").c_str(), &status) == 0);
  CHECK((S_ISCHR(status.st_mode) && status.st_rdev == 0));
  CHECK((::stat((server.root() / "null").c_str(), &status) == -1 && errno == ENOENT));
  CHECK((::stat((server.root() / "disk").c_str(), &status) == -1 && errno == ENOENT));
  CHECK(std::distance(fs::directory_iterator(server.root()), fs::directory_iterator()) == 1);
}

TEST_CASE("fuse_user_attributes_and_opaque_marks_are_shown") {
  const ImageScene scene;
  write(scene.tree / "file", "x");
  fs::create_directory(scene.tree / "opaque");
  const auto set = [&](const char* file, const char* name, const std::string& value) {
    REQUIRE(::setxattr((scene.tree / file).c_str(), name, value.data(), value.size(), 0) == 0);
  };
  // tmpfs supports trusted attributes on every kernel, user attributes only on some.
  set("file", "trusted.other", "secret");
  set("opaque", "trusted.overlay.opaque", "y");
  set("opaque", "trusted.overlay.redirect", "/etc");
  const bool has_user = ::setxattr((scene.tree / "file").c_str(), "user.note", "hello", 5, 0) == 0;
  make_squashfs(scene.tree, scene.image);
  const auto server = FuseServer::start(scene.image).value();
  const auto get = [&](const char* file, const char* name) {
    char value[64] = {};
    const ssize_t size = ::getxattr((server.root() / file).c_str(), name, value, sizeof value);
    return size < 0 ? std::string("none") : std::string(value, static_cast<std::size_t>(size));
  };
  CHECK(get("opaque", "trusted.overlay.opaque") == "y");
  CHECK(get("opaque", "trusted.overlay.redirect") == "none");
  CHECK(get("file", "trusted.other") == "none");
  if (has_user) CHECK(get("file", "user.note") == "hello");
  char names[256] = {};
  const ssize_t size = ::listxattr((server.root() / "opaque").c_str(), names, sizeof names);
  CHECK(std::string(names, static_cast<std::size_t>(std::max<ssize_t>(size, 0))) ==
        std::string("trusted.overlay.opaque") + '\0');
}

TEST_CASE("fuse_squashfs_at_offset_is_served") {
  const ImageScene scene;
  write(scene.tree / "file", "found");
  make_squashfs(scene.tree, scene.at / "part");
  write(scene.image, std::string(12345, '#') + contents(scene.at / "part"));
  const auto server = FuseServer::start(scene.image, 12345).value();
  CHECK(contents(server.root() / "file") == "found");
}

// outcome 139 accepted: 2 TiB sparse image; unreachable mount
TEST_CASE("fuse_files_beyond_4_gib_are_read_correctly") {
  const ImageScene scene;
  const fs::path tree = "/run/sparse";  // a tmpfs reads holes ten times faster
  fs::create_directory(tree);
  const fs::path big = tree / "big";
  const int file = ::open(big.c_str(), O_WRONLY | O_CREAT, 0644);
  const auto put = [&](off_t at, const std::string& text) {
    REQUIRE(::pwrite(file, text.data(), text.size(), at) == static_cast<ssize_t>(text.size()));
  };
  const off_t giga = off_t{1} << 30;
  put(0, "begin");
  put(2 * giga + 77, text_of(400000, 1));
  put(5 * giga - 3, "end");
  ::close(file);
  make_squashfs(tree, scene.image, "-comp lz4 -b 16K");  // 327,680 blocks: 160 marks in the index
  const auto server = FuseServer::start(scene.image).value();
  std::ifstream stream(server.root() / "big", std::ios::binary);
  const auto get = [&](off_t at, std::size_t size) {
    std::string text(size, '?');
    stream.seekg(at);
    stream.read(text.data(), static_cast<std::streamsize>(size));
    return text;
  };
  CHECK(get(5 * giga - 3, 3) == "end");
  CHECK(get(2 * giga + 77, 400000) == text_of(400000, 1));
  CHECK(get(4 * giga, 10) == std::string(10, '\0'));
  CHECK(get(0, 5) == "begin");
  CHECK(fs::file_size(server.root() / "big") == static_cast<std::uintmax_t>(5 * giga));
}

TEST_CASE("fuse_parallel_readers_get_correct_bytes") {
  const ImageScene scene;
  std::map<std::string, std::size_t> hashes;
  for (unsigned i = 0; i < 48; ++i) {
    const std::string text = text_of(20000 + i * 9973, i);
    write(scene.tree / std::to_string(i % 7) / std::to_string(i), text);
    hashes[std::to_string(i % 7) + "/" + std::to_string(i)] = std::hash<std::string>()(text);
  }
  make_squashfs(scene.tree, scene.image, "-comp gzip -b 64K");
  const auto server = FuseServer::start(scene.image).value();
  std::atomic<int> right = 0;
  std::vector<std::jthread> readers;
  for (unsigned reader = 0; reader < 32; ++reader) {
    readers.emplace_back([&, reader] {
      std::vector<std::string> names;
      for (const auto& [name, hash] : hashes) names.push_back(name);
      std::shuffle(names.begin(), names.end(), std::mt19937(reader));
      for (const auto& name : names)
        right += std::hash<std::string>()(contents(server.root() / name)) == hashes[name];
    });
  }
  readers.clear();
  CHECK(right == 32 * 48);
}

TEST_CASE("fuse_server_is_confined") {
  const ImageScene scene;
  write(scene.tree / "file", "x");
  make_squashfs(scene.tree, scene.image);
  auto server = FuseServer::start(scene.image, 0, 4242).value();
  CHECK(contents(server.root() / "file") == "x");
  CHECK(status_line(server.pid(), "Seccomp") == "2");
  CHECK(status_line(server.pid(), "NoNewPrivs") == "1");
  CHECK(status_line(server.pid(), "Uid") == "4242\t4242\t4242\t4242");
  CHECK(status_line(server.pid(), "CapEff") == "0000000000000000");
  const std::string own = "/proc/" + std::to_string(server.pid());
  CHECK(contents(own + "/environ").empty());
  std::vector<std::string> descriptors;
  for (const auto& entry : fs::directory_iterator(own + "/fd"))
    descriptors.push_back(entry.path().filename());
  // 6 and 7 are reserved for images in place, and are /dev/null here. 8 waits for orders.
  for (const char* extra : {"9", "10", "100", "101"}) {
    CHECK(std::count(descriptors.begin(), descriptors.end(), extra) == 0);
  }
  // Threads are in the sandbox as well.
  for (const auto& entry : fs::directory_iterator(own + "/task")) {
    CHECK(contents(entry.path() / "status").find("Seccomp:\t2") != std::string::npos);
  }
  ::kill(server.pid(), SIGTERM);  // meant for the tasks, which still need their files
  ::usleep(50'000);
  CHECK(contents(server.root() / "file") == "x");
  CHECK(server.end() == 0);
}

TEST_CASE("fuse_changed_chunk_is_an_error_and_a_line_in_the_log") {
  // Cover /dev in this test's mount namespace, which has a log.
  const char* const devices[] = {"/dev/fuse", "/dev/null"};
  std::vector<UniqueFd> opened;
  for (const char* device : devices) opened.emplace_back(::open(device, O_PATH | O_CLOEXEC));
  REQUIRE(::mount("dev", "/dev", "tmpfs", 0, "mode=0755") == 0);
  for (std::size_t i = 0; i < opened.size(); ++i) {
    const std::string from = "/proc/self/fd/" + std::to_string(opened[i].get());
    std::ofstream(devices[i]).close();
    REQUIRE(::mount(from.c_str(), devices[i], nullptr, MS_BIND, nullptr) == 0);
  }
  REQUIRE(::symlink("/proc/self/fd", "/dev/fd") == 0);
  const UniqueFd log(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address{.sun_family = AF_UNIX, .sun_path = "/dev/log"};
  REQUIRE(::bind(log.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::chmod("/dev/log", 0666) == 0);

  const ImageScene scene;
  const std::string text = text_of(400'000, 7);
  write(scene.tree / "file", text);
  make_squashfs(scene.tree, scene.image, "-noD -noF");
  const Digest layer = digest_of(0xab);
  const auto server = FuseServer::start_in_place(scene.image, layer).value();
  std::fstream image(scene.image, std::ios::in | std::ios::out | std::ios::binary);
  image.seekp(3 * 65536 + 100).put('#').flush();
  UniqueFd file(::open((server.root() / "file").c_str(), O_RDONLY | O_CLOEXEC));
  std::string got(text.size(), '\0');
  CHECK(::pread(file.get(), got.data(), 1000, 3 * 65536) == -1);
  CHECK(errno == EIO);
  pollfd line{log.get(), POLLIN, 0};
  REQUIRE(::poll(&line, 1, 10'000) == 1);
  char said[500] = {};
  CHECK(::recv(log.get(), said, sizeof said - 1, 0) > 0);
  CHECK(std::string(said) == "<27>spank-container: layer " + layer.str() +
                                 " in the shared store: byte 196608: was changed");
  CHECK(::pread(file.get(), got.data(), 1000, 0) == 1000);
  CHECK(got.substr(0, 1000) == text.substr(0, 1000));
}

// outcome 156 accepted: SIGKILL of import, converter, agent at every step
TEST_CASE("fuse_server_killed_gives_errors_without_hanging") {
  const ImageScene scene;
  write(scene.tree / "file", "x");
  make_squashfs(scene.tree, scene.image);
  auto server = FuseServer::start(scene.image).value();
  ::kill(server.pid(), SIGKILL);
  struct stat status {};
  CHECK(becomes_true([&] {
    return ::stat((server.root() / "file").c_str(), &status) == -1 && errno == ENOTCONN;
  }));
  CHECK(server.end() == SIGKILL);
}

TEST_CASE("fuse_server_ends_when_device_fails") {
  const ImageScene scene;
  write(scene.tree / "file", "x");
  make_squashfs(scene.tree, scene.image);
  auto server = FuseServer::start(scene.image, 0, 4242, FuseServer::Mount::claimed).value();
  const auto status = server.end();
  REQUIRE(status);
  CHECK(WIFEXITED(
      *status));  // libfuse reports the error, which the sandbox must not treat as an attack
}

TEST_CASE("fuse_server_ends_without_a_mount") {
  const ImageScene scene;
  write(scene.tree / "file", "x");
  make_squashfs(scene.tree, scene.image);
  auto server = FuseServer::start(scene.image, 0, 4242, FuseServer::Mount::no).value();
  const auto status = server.end();  // its socket has been closed
  REQUIRE(status);
  CHECK(WEXITSTATUS(*status) == 1);
}
