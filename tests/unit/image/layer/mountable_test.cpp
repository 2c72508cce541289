#include "image/pull/layer_process.hpp"

#include <sys/utsname.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("kernel_lz4_support_is_read_from_its_configuration") {
  std::string root = "/tmp/spc-kernel-XXXXXX";
  REQUIRE(::mkdtemp(root.data()) != nullptr);
  utsname system{};
  ::uname(&system);
  const std::string release = system.release;
  const auto place = [&](const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    return root + path;
  };
  const auto write = [&](const std::string& path, const std::string& text) {
    std::ofstream(place(path)) << text;
    return reads_lz4(root);
  };
  CHECK_FALSE(reads_lz4(root));
  CHECK_FALSE(write("/boot/config-1.2.3", "CONFIG_SQUASHFS=m\nCONFIG_SQUASHFS_LZ4=y\n"));
  const std::string of_module = "/lib/modules/" + release + "/config";
  CHECK_FALSE(write(
      of_module, "CONFIG_SQUASHFS=m\n# CONFIG_SQUASHFS_LZ4 is not set\nCONFIG_SQUASHFS_ZSTD=y\n"));
  CHECK(write(of_module, "CONFIG_SQUASHFS=m\nCONFIG_SQUASHFS_LZ4=y\nCONFIG_SQUASHFS_ZSTD=y\n"));
  CHECK_FALSE(write("/boot/config-" + release, "CONFIG_SQUASHFS=m\n"));  // the first entry wins
  const std::string packed = place("/proc/config.gz");
  gzFile_s* const file = ::gzopen(packed.c_str(), "w");
  REQUIRE(file != nullptr);
  CHECK(::gzputs(file, "CONFIG_SQUASHFS=y\nCONFIG_SQUASHFS_LZ4=y\n") > 0);
  ::gzclose(file);
  CHECK(reads_lz4(root));
  std::filesystem::resize_file(packed, 20);
  CHECK_FALSE(reads_lz4(root));
  std::filesystem::remove_all(root);
}

TEST_CASE("erofs_is_preferred_when_only_it_maps_owners") {
  std::string list = "/tmp/spc-filesystems-XXXXXX";
  const int file = ::mkstemp(list.data());
  REQUIRE(file >= 0);
  ::close(file);
  std::ofstream(list) << "nodev\tsysfs\n\tsquashfs\n\terofs\n";
  static int asked;
  asked = 0;
  const auto ask = [] { ++asked; };
  CHECK_FALSE(maps_only_erofs({5, 18}, list, ask));
  CHECK(maps_only_erofs({5, 19}, list, ask));
  CHECK(maps_only_erofs({6, 1}, list, ask));
  CHECK_FALSE(maps_only_erofs({6, 2}, list, ask));
  CHECK(saves_memory_by_erofs((8 << 20) + 1, {6, 2}, list, ask));
  CHECK_FALSE(saves_memory_by_erofs(8 << 20, {6, 2}, list, ask));
  CHECK_FALSE(saves_memory_by_erofs(64 << 20, {5, 18}, list, ask));
  CHECK(asked == 0);
  std::ofstream(list) << "nodev\terofsx\n\tsquashfs\n";
  CHECK_FALSE(maps_only_erofs({6, 1}, list, ask));
  CHECK(asked == 1);
  CHECK_FALSE(saves_memory_by_erofs(64 << 20, {6, 12}, list, ask));
  CHECK(asked == 2);
  static std::string loaded;
  loaded = list;
  CHECK(maps_only_erofs({6, 1}, list, [] {
    std::ofstream(loaded) << "\terofs\n";
  }));  // its module was not loaded yet
  ::unlink(list.c_str());
  CHECK_FALSE(maps_only_erofs({6, 1}, list, ask));
}

TEST_CASE("squashfs_kernel_memory_is_estimated") {
  std::string root = "/tmp/spc-kernel-XXXXXX";
  REQUIRE(::mkdtemp(root.data()) != nullptr);
  utsname system{};
  ::uname(&system);
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  const auto in_kib = [&](LayerCompression compression) {
    return memory_of_squashfs(compression, root) >> 10;
  };
  CHECK(in_kib(LayerCompression::lz4) == 512 + 384);  // memory size unknown
  write("/sys/devices/system/cpu/possible", "0-127\n");
  CHECK(in_kib(LayerCompression::lz4) == 512 + 128 * 384);
  CHECK(in_kib(LayerCompression::zstd) == 512 + 128 * 768);
  write("/sys/devices/system/cpu/possible", "0-3,8-11\n");
  CHECK(in_kib(LayerCompression::lz4) == 512 + 12 * 384);
  write("/sys/devices/system/cpu/possible", "0\n");
  CHECK(in_kib(LayerCompression::lz4) == 512 + 384);
  write("/sys/devices/system/cpu/possible", "0-7\n");
  const std::string config = std::string("/boot/config-") + system.release;
  write(config, "CONFIG_SQUASHFS=m\nCONFIG_SQUASHFS_DECOMP_SINGLE=y\nCONFIG_SQUASHFS_LZ4=y\n");
  CHECK(in_kib(LayerCompression::lz4) == 512 + 384);
  write(config,
        "CONFIG_SQUASHFS=m\nCONFIG_SQUASHFS_DECOMP_SINGLE=y\nCONFIG_SQUASHFS_CHOICE_DECOMP_BY_"
        "MOUNT=y\n");
  CHECK(in_kib(LayerCompression::lz4) == 512 + 8 * 384);
  std::filesystem::remove_all(root);
}
