// What an archive's entries become: the tree and its attributes.

#include <openssl/sha.h>
#include <sys/stat.h>

#include "unit/image/layer/outcome.hpp"

using namespace spc;
using namespace spc::test;

namespace {

std::string refusal_of(const Tar& tar) { return reason(tar.end()); }

bool is_whiteout(const Found& found) { return S_ISCHR(found.mode) && found.device == 0; }
bool is_opaque(const Found& found) {
  return found.xattrs.count("trusted.overlay.opaque") == 1 &&
         found.xattrs.count("user.overlay.opaque") == 1 &&
         found.xattrs.at("trusted.overlay.opaque") == "y" &&
         found.xattrs.at("user.overlay.opaque") == "y";
}

}  // namespace

TEST_CASE(
    "files, directories, links and FIFOs arrive with mode, time and content, all owned by 0:0") {
  auto image = image_of(Tar()
                            .directory("./", 0711)
                            .directory("a/", 01777)
                            .file("a/f", "hello", 0750)
                            .symlink("a/l", "/etc/passwd")
                            .entry({.name = "a/p", .type = '6', .mode = 0600}));
  CHECK(image.size() == 5);
  CHECK(image[""].mode == (S_IFDIR | 0711));
  CHECK(image["a"].mode == (S_IFDIR | 01777));
  CHECK(image["a/f"].mode == (S_IFREG | 0750));
  CHECK(image["a/f"].data == "hello");
  CHECK(image["a/f"].mtime == 15);
  CHECK(image["a/f"].links == 1);
  CHECK(image["a/l"].data == "/etc/passwd");
  CHECK(image["a/p"].mode == (S_IFIFO | 0600));
  for (const auto& [path, found] : image) CHECK((found.uid == 0 && found.gid == 0));
}

TEST_CASE("the diffID is the hash of every byte, padding behind the end included") {
  const std::string tar = Tar().file("f").end() + std::string(9000, '\0') + "never parsed";
  const auto converted = convert(gzip(tar));
  REQUIRE(converted.layer);
  Digest expected;
  SHA256(reinterpret_cast<const unsigned char*>(tar.data()), tar.size(), expected.bytes.data());
  CHECK(converted.layer->diff_id == expected);
  CHECK(converted.layer->tar_bytes == tar.size());
  CHECK(converted.layer->entries == 1);
}

TEST_CASE("an archive without end marker and an empty one are accepted") {
  CHECK(convert(Tar().file("f").without_end()).layer);
  CHECK(convert(Tar().file("f").without_end() + std::string(512, '\0')).layer);
  const auto empty = convert(gzip(Tar().end()));
  REQUIRE(empty.layer);
  CHECK(empty.image().size() == 1);
}

TEST_CASE("files of every size around a block keep their bytes") {
  for (const std::size_t size :
       {0U, 1U, 511U, 512U, 131071U, 131072U, 131073U, 262144U, 1048576U, 3333333U}) {
    std::string data(size, '\0');
    std::uint32_t seed = 1;
    fill_with_noise(data, seed, size % 2 == 0 ? 24 : 30);
    auto image = image_of(Tar().file("before", "x").file("f", data).file("after", "y"));
    CHECK(image["f"].data == data);
    CHECK(image["before"].data + image["after"].data == "xy");
  }
}

TEST_CASE("zeros in a file take no room") {
  const std::string data = std::string(10 * 131072, '\0') + "end" + std::string(300000, '\0');
  const auto converted =
      convert(Tar().file("f", data).file("all", std::string(5 * 131072, '\0')).end());
  REQUIRE(converted.layer);
  auto image = converted.image();
  CHECK(image["f"].data == data);
  CHECK(image["all"].data == std::string(5 * 131072, '\0'));
  CHECK(contents(converted.file.get()).size() <= 4096);
}

TEST_CASE("absolute and unclean names stay inside the root") {
  auto image = image_of(Tar().file("/abs/f").file(".//x/./y//z").file("u/v/../w"));
  CHECK(image.count("abs/f") == 1);
  CHECK(image.count("x/y/z") == 1);
  CHECK(image.count("u/w") == 1);
}

TEST_CASE("a name that leaves the root is refused and named") {
  for (const char* name : {"../f", "/../f", "a/../../f", ".."}) {
    const auto why = refusal_of(Tar().file("ok").file(name));
    CHECK(has(why, in_quotes(name)));
    CHECK(has(why, "leaves the image's root"));
  }
}

TEST_CASE("missing parents are made") {
  auto image = image_of(Tar().file("a/b/c"));
  CHECK(image["a"].mode == (S_IFDIR | 0755));
  CHECK(image["a"].links == 3);
  CHECK(image["a/b"].links == 2);
}

TEST_CASE("the last entry of a name wins") {
  auto image = image_of(Tar()
                            .file("twice", "1")
                            .file("twice", "2")
                            .file("fd")
                            .directory("fd")
                            .file("fd/in")
                            .directory("df")
                            .file("df/in")
                            .file("df", "file")
                            .symlink("lf", "twice")
                            .file("lf", "own")
                            .directory("ld")
                            .file("ld/in")
                            .symlink("ld", "fd")
                            .directory("dd", 0700)
                            .file("dd/kept")
                            .directory("dd", 0750)
                            .symlink("dl", "fd")
                            .directory("dl"));
  CHECK(image["twice"].data == "2");
  CHECK(image.count("fd/in") == 1);
  CHECK(image["df"].data == "file");
  CHECK(image.count("df/in") == 0);
  CHECK(image["lf"].data == "own");
  CHECK(S_ISLNK(image["ld"].mode));
  CHECK(image["dd"].mode == (S_IFDIR | 0750));
  CHECK(image.count("dd/kept") == 1);
  CHECK(S_ISDIR(image["dl"].mode));
}

TEST_CASE("an entry behind a link of the same layer goes where the link leads, inside the root") {
  auto image = image_of(Tar()
                            .directory("usr/bin")
                            .symlink("bin", "usr/bin")
                            .file("bin/relative")
                            .symlink("sbin", "/usr/bin")
                            .file("sbin/absolute")
                            .symlink("chain", "bin")
                            .file("chain/chained")
                            .symlink("x/up", "../../../../usr")
                            .file("x/up/clamped")
                            .symlink("host", "/etc")
                            .file("host/shadow")
                            .symlink("dangling", "no/where")
                            .file("dangling/f"));
  for (const char* name : {"usr/bin/relative", "usr/bin/absolute", "usr/bin/chained", "usr/clamped",
                           "etc/shadow", "no/where/f"}) {
    CHECK(image.count(name) == 1);
  }
  CHECK(S_ISLNK(image["bin"].mode));
}

TEST_CASE("a loop of links or a file in the way is refused") {
  CHECK(has(refusal_of(Tar().symlink("a", "b").symlink("b", "a").file("a/f")), "loop"));
  CHECK(has(refusal_of(Tar().file("a").file("a/f")), "\"a\" in the path is not a directory"));
}

TEST_CASE("hard links share one inode") {
  auto image = image_of(Tar()
                            .file("f", "same")
                            .hard_link("g", "f")
                            .hard_link("d/h", "/f")
                            .hard_link("self", "f")
                            .hard_link("f", "f")
                            .symlink("l", "nowhere")
                            .hard_link("m", "l"));
  CHECK(image["f"].links == 4);
  CHECK(image["g"].inode == image["f"].inode);
  CHECK(image["d/h"].data == "same");
  CHECK(image["m"].data == "nowhere");
  CHECK(image["m"].links == 2);
}

TEST_CASE("a hard link keeps the data of a name that is replaced later") {
  auto image = image_of(Tar().file("f", "old").hard_link("g", "f").file("f", "new"));
  CHECK(image["g"].data == "old");
  CHECK(image["g"].links == 1);
  CHECK(image["f"].data == "new");
}

TEST_CASE("a hard link to something that is not in the layer is refused and named") {
  CHECK(has(refusal_of(Tar().hard_link("l", "etc/shadow")),
            "entry \"l\": it is a hard link to \"etc/shadow\", which is not in this layer"));
  CHECK(has(refusal_of(Tar().hard_link("l", "later").file("later")), "not in this layer"));
  CHECK(has(refusal_of(Tar().hard_link("l", "../../etc/shadow")), "leaves the image's root"));
  CHECK(has(refusal_of(Tar().directory("d").hard_link("l", "d")), "is a directory"));
  CHECK(has(refusal_of(Tar().symlink("out", "/etc").hard_link("l", "out/shadow")),
            "not in this layer"));
}

TEST_CASE("whiteouts become device 0:0 and opaque directories carry both attributes") {
  auto image = image_of(Tar()
                            .file("d/.wh.gone")
                            .file("o/.wh..wh..opq")
                            .file("o/new")
                            .file("o/.wh..wh.plnk")
                            .file(".wh..wh.aufs")
                            .hard_link(".wh.linked", "o/new")
                            .directory(".wh.dir"));
  CHECK(is_whiteout(image["d/gone"]));
  CHECK(is_whiteout(image["linked"]));
  CHECK(is_whiteout(image["dir"]));
  CHECK(is_opaque(image["o"]));
  CHECK_FALSE(is_opaque(image["d"]));
  for (const auto& [path, found] : image) CHECK_FALSE(has(path, ".wh."));
  CHECK(image.size() == 7);
}

TEST_CASE("a directory with a whiteout's name is none, and what has a link elsewhere stays") {
  auto image = image_of(Tar()
                            .file(".wh..wh.plnk/1.2")
                            .hard_link("f", ".wh..wh.plnk/1.2")
                            .file("d/.wh.e/g")
                            .file("d/h"));
  CHECK(image["f"].data == "data");
  CHECK(image.count("d/h") == 1);
  for (const auto& [path, found] : image) CHECK_FALSE(has(path, ".wh."));
  CHECK(image.size() == 4);
}

TEST_CASE("a whiteout hides lower layers only: what this layer has of the name stays") {
  auto image = image_of(Tar()
                            .file("a")
                            .file(".wh.a")
                            .file(".wh.b")
                            .file("b")
                            .directory("d")
                            .file("d/f")
                            .file(".wh.d")
                            .file(".wh.e")
                            .file("e/f"));
  CHECK(image["a"].data == "data");
  CHECK(image["b"].data == "data");
  CHECK(image.count("d/f") == 1);
  CHECK(is_opaque(image["d"]));
  CHECK(image.count("e/f") == 1);
  CHECK(is_opaque(image["e"]));
}

TEST_CASE("whiteouts of nothing, of the directory itself and of its parent do nothing") {
  CHECK(image_of(Tar().file("d/.wh.").file("d/.wh..").file("d/.wh...")).size() == 2);
}

TEST_CASE("device nodes are dropped and counted") {
  const auto converted = convert(Tar()
                                     .entry({.name = "dev/null", .type = '3'})
                                     .entry({.name = "forged", .type = '3'})
                                     .entry({.name = "sda", .type = '4'})
                                     .end());
  REQUIRE(converted.layer);
  CHECK(converted.layer->dropped_devices == 3);
  CHECK(converted.image().size() == 1);
}

TEST_CASE("setuid and setgid are dropped, sticky stays") {
  auto image = image_of(Tar().file("f", "x", 07755).directory("d", 07777));
  CHECK(image["f"].mode == (S_IFREG | 01755));
  CHECK(image["d"].mode == (S_IFDIR | 01777));
}

TEST_CASE("a user's own attributes stay, all others are dropped") {
  const std::string records = record("SCHILY.xattr.user.note", std::string("a\0b", 3)) +
                              record("SCHILY.xattr.security.capability", "x") +
                              record("SCHILY.xattr.trusted.overlay.opaque", "y") +
                              record("SCHILY.xattr.user.overlay.redirect", "/etc") +
                              record("SCHILY.xattr.system.posix_acl_access", "x") +
                              record("SCHILY.acl.access", "u::rw");
  const auto converted =
      convert(Tar().pax(records).file("f").pax(records).directory("d").file("g").end());
  REQUIRE(converted.layer);
  auto image = converted.image();
  const std::map<std::string, std::string> kept{{"user.note", std::string("a\0b", 3)}};
  CHECK(image["f"].xattrs == kept);
  CHECK(image["d"].xattrs == kept);
  CHECK(image["g"].xattrs.empty());
  CHECK(converted.layer->dropped_xattrs == 8);
}

TEST_CASE("names keep their bytes, whatever they are and however they are written") {
  const std::string odd = "e\xcc\x81 \xff\xfe\n\"$(id)',:\\";
  const std::string directory(200, 'd');
  const std::string deep = directory + '/' + std::string(250, 'f');
  auto image = image_of(Tar()
                            .pax(record("path", odd))
                            .file("short")
                            .pax(record("path", deep + "1"))
                            .file("short")
                            .gnu_long('L', deep + "2")
                            .file("short")
                            .entry({.name = "tail", .prefix = "some/prefix"})
                            .gnu_long('K', deep + "1")
                            .entry({.name = "l", .type = '2'})
                            .pax(record("linkpath", deep + "2"))
                            .entry({.name = "m", .type = '1'}));
  CHECK(image.count(odd) == 1);
  CHECK(image.count(deep + "1") == 1);
  CHECK(image.count("some/prefix/tail") == 1);
  CHECK(image["l"].data == deep + "1");
  CHECK(image["m"].inode == image[deep + "2"].inode);
  CHECK(image.count("short") == 0);
}

TEST_CASE("a name has at most 255 bytes and a path 4096") {
  CHECK(convert(Tar().pax(record("path", std::string(255, 'n'))).file("x").end()).layer);
  CHECK(has(refusal_of(Tar().pax(record("path", std::string(256, 'n'))).file("x")), "255"));
  std::string path;
  while (path.size() < 5000) path += "directory/";
  CHECK(has(refusal_of(Tar().pax(record("path", path)).directory("x")), "4096"));
}

TEST_CASE("directories nest up to a bound, through links too") {
  Tar tar;
  std::string path;
  for (int i = 0; i < 2000; ++i) path += "a/";
  tar.pax(record("path", path))
      .directory("x")
      .symlink("l", std::string(path, 0, 99))
      .pax(record("linkpath", path))
      .symlink("l", "x");
  CHECK(convert(tar.end()).layer);
  CHECK(has(refusal_of(tar.pax(record("path", "l/" + path)).directory("x")), "nested too deeply"));
}

TEST_CASE("times outside of what squashfs stores are cut") {
  auto image = image_of(
      Tar()
          .pax(record("mtime", "-5.5"))
          .file("early")
          .pax(record("mtime", "99999999999"))
          .file("late")
          .pax(record("mtime", "1234.567"))
          .file("now")
          .entry({.name = "b256", .mtime = std::string("\x80\0\0\0\0\0\0\0\0\0\0\x2a", 12)})
          .entry({.name = "minus", .mtime = std::string(12, '\xff')}));
  CHECK(image["early"].mtime == 0);
  CHECK(image["late"].mtime == 0xffffffff);
  CHECK(image["now"].mtime == 1234);
  CHECK(image["b256"].mtime == 42);
  CHECK(image["minus"].mtime == 0);
}

TEST_CASE("the root entry can only be a directory") {
  CHECK(has(refusal_of(Tar().file(".")), "root"));
  CHECK(has(refusal_of(Tar().symlink("/", "/etc")), "root"));
}

TEST_CASE(
    "old and unusual types: V7 directories and contiguous files are read, unknown ones refused") {
  auto image = image_of(Tar()
                            .entry({.name = "v7/", .type = '\0'})
                            .entry({.name = "old", .type = '\0', .size = 1}, "o")
                            .entry({.name = "contiguous", .type = '7', .size = 1}, "c")
                            .entry({.name = "dir", .type = '5', .size = 0}));
  CHECK(S_ISDIR(image["v7"].mode));
  CHECK(image["old"].data + image["contiguous"].data == "oc");
  for (const char type : {'M', 'V', 'D', 'Q'})
    CHECK(has(refusal_of(Tar().entry({.name = "odd", .type = type})), "unknown type"));
}

TEST_CASE("a file whose name ends as a directory's is refused: readers differ in what it is") {
  const std::string long_name =
      std::string(99, 'd') + "/file";  // the header has only its first 100 bytes
  for (const auto& tar :
       {Tar().file("f/"), Tar().pax(record("path", "f/")).file("f"),
        Tar().gnu_long('L', "f/").file("f"),
        Tar().pax(record("path", long_name)).entry({.name = long_name, .type = '\0'})}) {
    CHECK(has(refusal_of(tar), "may be a file or a directory"));
  }
  CHECK(image_of(Tar().pax(record("path", long_name)).file(long_name)).count(long_name) == 1);
}

TEST_CASE("a size stated by a link or a directory means no data") {
  auto image = image_of(
      Tar().file("f").entry({.name = "l", .type = '1', .size = 512, .link = "f"}).file("g"));
  CHECK(image["l"].links == 2);
  CHECK(image.count("g") == 1);
}

TEST_CASE("global extended headers change nothing, and none may name or place an entry") {
  auto image = image_of(Tar().pax(record("comment", "git") + record("mtime", "1"), 'g').file("f"));
  CHECK(image["f"].mtime == 15);
  CHECK(image.size() == 2);
  for (const auto& records : {record("path", "/etc/passwd"), record("linkpath", "x"),
                              record("size", "1"), record("GNU.sparse.size", "9")}) {
    CHECK(has(refusal_of(Tar().pax(records, 'g').file("f")), "a global extended header sets"));
  }
}

TEST_CASE("an extended header's size counts, and nothing is smuggled in the difference") {
  const std::string hidden = Header{.name = "smuggled"}.bytes();
  auto image = image_of(Tar()
                            .pax(record("size", "512"))
                            .raw(Header{.name = "f", .size = 0}.bytes())
                            .raw(hidden)
                            .file("g"));
  CHECK(image["f"].data == hidden);
  CHECK(image.count("smuggled") == 0);
  CHECK(image.count("g") == 1);
}

TEST_CASE(
    "a long name behind an extended header keeps its own size, and the extended header wins") {
  auto image = image_of(
      Tar().pax(record("path", "pax") + record("size", "3")).gnu_long('L', "gnu").file("f", "abc"));
  CHECK(image["pax"].data == "abc");
  CHECK(image.size() == 2);
}

TEST_CASE("the same layer gives the same bytes for any number of threads") {
  Tar tar;
  std::uint32_t seed = 7;
  for (int i = 0; i < 60; ++i) {
    std::string data(static_cast<std::size_t>(i) * 17000, '\0');
    fill_with_noise(data, seed, 24 + static_cast<unsigned>(i) % 6);
    tar.pax(record("SCHILY.xattr.user.i", std::to_string(i % 5)))
        .file("d" + std::to_string(i % 7) + "/f" + std::to_string(i), data);
  }
  const std::string blob = gzip(tar.end());
  const std::string first = contents(convert(blob, 0).file.get());
  CHECK(first.size() % 4096 == 0);
  for (const unsigned workers : {1U, 2U, 4U, 4U})
    CHECK(contents(convert(blob, workers).file.get()) == first);
  CHECK(contents(convert(zstd(tar.end()), 2).file.get()) == first);

  const auto files = convert(blob, 2).image();
  for (const auto compression : {LayerCompression::lz4, LayerCompression::none}) {
    const auto other = convert(blob, 0, {.compression = compression});
    const std::string bytes = contents(other.file.get());
    CHECK(contents(convert(blob, 4, {.compression = compression}).file.get()) == bytes);
    CHECK(bytes.size() > first.size());
    const auto same = other.image();
    REQUIRE(same.size() == files.size());
    for (const auto& [path, file] : files) CHECK(same.at(path).data == file.data);
  }
}

TEST_CASE("100,000 entries, in one directory too") {
  Tar tar;
  for (int i = 0; i < 100'000; ++i)
    tar.file((i % 2 == 0 ? "one/" : std::to_string(i % 1000) + '/') + std::to_string(i), "x");
  const auto converted = convert(gzip(tar.end()));
  INFO(converted.why());
  REQUIRE(converted.layer);
  CHECK(converted.layer->entries == 100'000);
  CHECK(converted.image().size() == 100'000 + 1 + 1 + 500);
}
