// Damaged image files: the server refuses them, or answers EIO and stays alive.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <random>

#include "files.hpp"
#include "fuse_server.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
namespace fs = std::filesystem;

namespace {

/// An image that tests damage.
struct Scene : ImageScene {
  Scene() {
    fs::create_directory(tree / "directory");
    for (int i = 0; i < 40; ++i) {
      std::mt19937 random(static_cast<unsigned>(i));
      std::string text(static_cast<std::size_t>(i) * 1500, '\0');
      for (auto& character : text) character = static_cast<char>('a' + random() % 32);
      std::ofstream(tree / "directory" / ("file" + std::to_string(i))) << text;
    }
    fs::create_symlink("directory", tree / "link");
  }
};

/// Reads everything reachable and returns the number of errors. An error other than EIO fails the
/// test.
int walk(const fs::path& directory, int depth = 0) {
  int errors = 0;
  const auto failed = [&] {
    INFO(directory);
    const int err = errno;
    // ELOOP and ESTALE: the kernel's errors for directories that contain themselves and for nodes
    // that change their type.
    CHECK((err == EIO || err == ENOENT || err == ELOOP || err == ESTALE || err == ENAMETOOLONG ||
           err == ENOMEM));
    ++errors;
  };
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  if (error) return 1;
  for (; entries != fs::directory_iterator() && depth < 8; entries.increment(error)) {
    if (error) return errors + 1;
    struct stat status {};
    if (::lstat(entries->path().c_str(), &status) != 0) {
      failed();
      continue;
    }
    if (S_ISDIR(status.st_mode)) errors += walk(entries->path(), depth + 1);
    if (!S_ISREG(status.st_mode)) continue;
    const int file = ::open(entries->path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
      failed();
      continue;
    }
    static char buffer[1 << 16];
    ssize_t got = 0;
    for (int i = 0; i < 64 && (got = ::read(file, buffer, sizeof buffer)) > 0; ++i) {
    }
    if (got < 0) failed();
    ::close(file);
  }
  return errors;
}

std::string refusal(const fs::path& image, std::uint64_t offset = 0) {
  const auto server = FuseServer::start(image, offset);
  return server ? "accepted" : server.error().message();
}

}  // namespace

// outcome 132 refused: not squashfs, version 3, truncated, tables past the end
// outcome 133 refused: compressors that are missing
TEST_CASE("fuse_unservable_file_is_refused_with_reason") {
  Scene scene;
  make_squashfs(scene.tree, scene.image);
  const std::string good = contents(scene.image);
  const auto with = [&](std::size_t at, const std::string& bytes) {
    std::string changed = good;
    changed.replace(at, bytes.size(), bytes);
    write(scene.image, changed);
    return refusal(scene.image);
  };
  CHECK(with(0, "xxxx") == "it is not a squashfs");
  CHECK(with(28, std::string("\3\0\1\0", 4))
            .starts_with("it is a squashfs of version 3.1, only version 4.0 is supported"));
  CHECK(with(0, "sqsh").starts_with("it is a squashfs of version 3 or older"));
  const std::string lzma = with(20, std::string("\2\0", 2));  // Debian 13's squashfuse has it
  CHECK((
      lzma == "accepted" ||
      lzma.starts_with("the squashfs is compressed with lzma, which this build does not support")));
  CHECK(with(20, std::string("\11\0", 2)) ==
        "the squashfs is compressed in an unknown way (number 9)");
  CHECK(with(12, std::string("\0\0\0\1", 4)) == "the squashfs is corrupt: block size 16777216");
  CHECK(with(72, std::string("\xff\xff\xff\xff", 4)) ==
        "the squashfs is corrupt: inode or directory table out of bounds");
  CHECK(with(48, std::string("\xff\xff\xff\xff", 4)) ==
        "the squashfs is corrupt: ID table out of bounds");
  CHECK(with(56, std::string("\x00\xff\xff\xff\x00\x00\x00\x00", 8))
            .ends_with("extended attribute table out of bounds"));
  CHECK(with(32, std::string("\x00\x00\xff\xff", 4)) ==
        "the squashfs is corrupt: root directory out of bounds");
  write(scene.image, good.substr(0, 4096));
  CHECK(refusal(scene.image).starts_with("the squashfs is truncated: 4096 of "));
  write(scene.image, good.substr(0, 50));
  CHECK(refusal(scene.image) == "the squashfs is truncated: it ends within its super block");
  write(scene.image, "");
  CHECK(refusal(scene.image) == "it is not a squashfs");
  CHECK(refusal(scene.image, 1 << 20) == "the squashfs starts beyond the end of the file");
}

// outcome 134 contained: damaged tables
TEST_CASE("fuse_server_survives_any_damage") {
  Scene scene;
  // With uncompressed tables, damage reaches the fields and not only the decompressor.
  for (const char* options : {"-noI -noD -noF -noX -noId -b 4K", "-comp gzip", "-comp lzo",
                              "-comp lz4", "-comp xz", "-comp zstd"}) {
    make_squashfs(scene.tree, scene.image, options);
    const std::string good = contents(scene.image);
    std::mt19937 random(std::hash<std::string>()(options));
    const int rounds = options[1] == 'n' ? 60 : 8;
    for (int round = 0; round < rounds; ++round) {
      INFO(options << ", round " << round);
      std::string bad = good;
      // Place most of the damage in the second half: the tables are at the end.
      const int changes = 1 + round % 20;
      for (int i = 0; i < changes; ++i) {
        const std::size_t from = random() % 4 == 0
                                     ? std::size_t{96}
                                     : bad.size() - std::min<std::size_t>(bad.size() / 2, 6000);
        bad[from + random() % (bad.size() - from)] = static_cast<char>(random());
      }
      write(scene.image, bad);
      auto server = FuseServer::start(scene.image);
      if (!server) continue;
      walk(server.value().root());
      CHECK(server.value().end() == 0);  // it stayed alive until it was told to end
    }
  }
}

// outcome 135 refused: a name of 65,535 bytes
TEST_CASE("fuse_overlong_name_hides_only_its_directory") {
  Scene scene;
  make_squashfs(scene.tree, scene.image, "-noI -noD -noF -noX -noId");
  std::string bytes = contents(scene.image);
  // The length of a name precedes it, minus one.
  const auto name = bytes.rfind("file39");
  REQUIRE(name != std::string::npos);
  for (const char* size : {"\xff\xff", "\xff\x00", "\x00\x01"}) {
    bytes.replace(name - 2, 2, std::string(size, 2));
    write(scene.image, bytes);
    auto server = FuseServer::start(scene.image).value();
    std::error_code error;
    const fs::directory_iterator none(server.root() / "directory", error);
    CHECK(error == std::errc::io_error);
    CHECK(fs::is_symlink(server.root() / "link"));
    CHECK(server.end() == 0);
  }
}

// outcome 138 contained: file replaced, truncated, rewritten while mounted
TEST_CASE("fuse_file_truncated_while_served_gives_errors") {
  Scene scene;
  make_squashfs(scene.tree, scene.image, "-noI -noD -noF -noX");
  auto server = FuseServer::start(scene.image).value();
  CHECK(fs::exists(server.root() / "directory"));
  fs::resize_file(scene.image, 100);
  CHECK(walk(server.root()) > 0);
  write(scene.image, std::string(500000, '\xff'));
  CHECK(walk(server.root()) > 0);
  CHECK(server.end() == 0);
}
