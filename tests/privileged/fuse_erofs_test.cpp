#include <sys/stat.h>
#include <sys/xattr.h>

#include <array>
#include <cerrno>
#include <iterator>

#include "files.hpp"
#include "fuse_server.hpp"
#include "scene.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/image/samples/erofs_image.hpp"

using namespace spc;
namespace fs = std::filesystem;

namespace {

/// Compares the mounted tree with the source of the image.
void compare_mounted(const fs::path& at, const test::ErofsNode& node) {
  INFO(node.path);
  struct stat status {};
  REQUIRE(::lstat(at.c_str(), &status) == 0);
  CHECK(status.st_mode == node.mode);
  CHECK(status.st_nlink == node.links);
  CHECK(status.st_mtime == 1'700'000'000);
  if (node.path != "") CHECK(status.st_ino == node.nid);
  if (S_ISREG(node.mode)) CHECK((contents(at) == node.content));
  if (S_ISLNK(node.mode)) CHECK(fs::read_symlink(at) == node.content);
  if (!S_ISDIR(node.mode)) return;
  CHECK(std::distance(fs::directory_iterator(at), {}) == static_cast<long>(node.entries.size()));
  for (const auto& [name, child] : node.entries) compare_mounted(at / name, *child);
}

}  // namespace

TEST_CASE("fuse_erofs_layer_shows_its_content") {
  const ImageScene scene;
  auto tree = test::erofs_sample();
  write(scene.image, tree.image().bytes);
  auto server = FuseServer::start(scene.image).value();
  compare_mounted(server.root(), tree.at(""));
  std::array<char, 100> value{};
  CHECK(::lgetxattr((server.root() / "note").c_str(), "user.note", value.data(), value.size()) ==
        5);
  CHECK(std::string(value.data()) == "value");
  CHECK(::lgetxattr((server.root() / "hide").c_str(), "trusted.overlay.opaque", value.data(),
                    value.size()) == 1);
  CHECK(::lgetxattr((server.root() / "plain").c_str(), "user.note", value.data(), value.size()) ==
        -1);
  CHECK(errno == ENODATA);
  CHECK(server.end() == 0);
}

TEST_CASE("fuse_erofs_damage_gives_io_error_for_affected_files") {
  const ImageScene scene;
  auto tree = test::erofs_sample();
  auto image = tree.image();
  image.set(tree.at("plain").nid * 32 + 16, ~0U);  // its first block
  write(scene.image, image.bytes);
  auto server = FuseServer::start(scene.image).value();
  CHECK(contents(server.root() / "plain") != tree.at("plain").content);
  CHECK((contents(server.root() / "packed") == tree.at("packed").content));
  CHECK(server.end() == 0);
}
