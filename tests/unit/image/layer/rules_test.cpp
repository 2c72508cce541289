// Conversion of an archive's entries to the tree and its attributes.

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

TEST_CASE("tar_entries_keep_mode_time_and_content_owned_by_root") {
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

TEST_CASE("layer_diff_id_covers_every_byte") {
  const std::string tar = Tar().file("f").end() + std::string(9000, '\0') + "never parsed";
  const auto converted = convert(gzip(tar));
  REQUIRE(converted.layer);
  Digest expected;
  SHA256(reinterpret_cast<const unsigned char*>(tar.data()), tar.size(), expected.bytes.data());
  CHECK(converted.layer->diff_id == expected);
  CHECK(converted.layer->tar_bytes == tar.size());
  CHECK(converted.layer->entries == 1);
}

// outcome 128 accepted: no end marker; what is behind it is never read
TEST_CASE("tar_without_end_marker_or_entries_is_accepted") {
  CHECK(convert(Tar().file("f").without_end()).layer);
  CHECK(convert(Tar().file("f").without_end() + std::string(512, '\0')).layer);
  const auto empty = convert(gzip(Tar().end()));
  REQUIRE(empty.layer);
  CHECK(empty.image().size() == 1);
}

TEST_CASE("tar_files_around_block_size_keep_their_bytes") {
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

// outcome 82 refused: bombs
TEST_CASE("tar_zeros_take_no_space") {
  const std::string data = std::string(10 * 131072, '\0') + "end" + std::string(300000, '\0');
  const auto converted =
      convert(Tar().file("f", data).file("all", std::string(5 * 131072, '\0')).end());
  REQUIRE(converted.layer);
  auto image = converted.image();
  CHECK(image["f"].data == data);
  CHECK(image["all"].data == std::string(5 * 131072, '\0'));
  CHECK(contents(converted.file.get()).size() <= 4096);
}

// outcome 103 accepted: missing parents, unclean names
TEST_CASE("tar_absolute_and_unclean_names_stay_inside_root") {
  auto image = image_of(Tar().file("/abs/f").file(".//x/./y//z").file("u/v/../w"));
  CHECK(image.count("abs/f") == 1);
  CHECK(image.count("x/y/z") == 1);
  CHECK(image.count("u/w") == 1);
}

// outcome 87 contained: names that climb out
TEST_CASE("tar_name_leaving_root_is_refused") {
  for (const char* name : {"../f", "/../f", "a/../../f", ".."}) {
    const auto why = refusal_of(Tar().file("ok").file(name));
    CHECK(has(why, in_quotes(name)));
    CHECK(has(why, "leaves the image's root"));
  }
}

// outcome 103 accepted: missing parents, unclean names
TEST_CASE("tar_missing_parents_are_created") {
  auto image = image_of(Tar().file("a/b/c"));
  CHECK(image["a"].mode == (S_IFDIR | 0755));
  CHECK(image["a"].links == 3);
  CHECK(image["a/b"].links == 2);
}

// outcome 90 accepted: a file over a link
// outcome 91 contained: mode, time, attributes through a link
// outcome 100 accepted: directories, files and links replace each other
TEST_CASE("tar_last_entry_of_a_name_wins") {
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

// outcome 89 contained: links, then writes through them
// outcome 101 accepted: /bin is usr/bin
TEST_CASE("tar_entry_behind_link_follows_it_inside_root") {
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

// outcome 131 contained: a loop, a dangling link or a file as parent
TEST_CASE("tar_link_loop_or_file_as_parent_is_refused") {
  CHECK(has(refusal_of(Tar().symlink("a", "b").symlink("b", "a").file("a/f")), "loop"));
  CHECK(has(refusal_of(Tar().file("a").file("a/f")), "\"a\" in the path is not a directory"));
}

// outcome 116 accepted: hard links of every kind
TEST_CASE("tar_hard_links_share_one_inode") {
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

// outcome 116 accepted: hard links of every kind
TEST_CASE("tar_hard_link_keeps_data_of_replaced_name") {
  auto image = image_of(Tar().file("f", "old").hard_link("g", "f").file("f", "new"));
  CHECK(image["g"].data == "old");
  CHECK(image["g"].links == 1);
  CHECK(image["f"].data == "new");
}

// outcome 92 contained: hard links to the outside
// outcome 93 contained: hard links to itself, a directory, a later file, nothing
TEST_CASE("tar_hard_link_to_missing_target_is_refused") {
  CHECK(has(refusal_of(Tar().hard_link("l", "etc/shadow")),
            "entry \"l\": it is a hard link to \"etc/shadow\", which is not in this layer"));
  CHECK(has(refusal_of(Tar().hard_link("l", "later").file("later")), "not in this layer"));
  CHECK(has(refusal_of(Tar().hard_link("l", "../../etc/shadow")), "leaves the image's root"));
  CHECK(has(refusal_of(Tar().directory("d").hard_link("l", "d")), "is a directory"));
  CHECK(has(refusal_of(Tar().symlink("out", "/etc").hard_link("l", "out/shadow")),
            "not in this layer"));
}

// outcome 96 contained: whiteouts of every type; AUFS names
TEST_CASE("tar_whiteouts_become_overlayfs_marks") {
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

TEST_CASE("tar_directory_named_as_whiteout_is_dropped") {
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

// outcome 98 accepted: whiteout and the same name
TEST_CASE("tar_whiteout_hides_only_lower_layers") {
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

// outcome 95 contained: whiteouts of ., .., nothing, through links
TEST_CASE("tar_whiteout_of_dot_names_has_no_effect") {
  CHECK(image_of(Tar().file("d/.wh.").file("d/.wh..").file("d/.wh...")).size() == 2);
}

// outcome 112 accepted: devices are dropped
TEST_CASE("tar_device_nodes_are_dropped_and_counted") {
  const auto converted = convert(Tar()
                                     .entry({.name = "dev/null", .type = '3'})
                                     .entry({.name = "forged", .type = '3'})
                                     .entry({.name = "sda", .type = '4'})
                                     .end());
  REQUIRE(converted.layer);
  CHECK(converted.layer->dropped_devices == 3);
  CHECK(converted.image().size() == 1);
}

// outcome 113 accepted: setuid, setgid, sticky
TEST_CASE("tar_setuid_and_setgid_are_dropped_sticky_kept") {
  auto image = image_of(Tar().file("f", "x", 07755).directory("d", 07777));
  CHECK(image["f"].mode == (S_IFREG | 01755));
  CHECK(image["d"].mode == (S_IFDIR | 01777));
}

// outcome 114 accepted: capabilities and overlay attributes are dropped
// outcome 115 accepted: attributes of users, lists of rights, FIFOs
TEST_CASE("tar_user_attributes_are_kept_others_dropped") {
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

// outcome 104 accepted: long names of every form
// outcome 107 accepted: names of any bytes
TEST_CASE("tar_names_keep_their_bytes") {
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

// outcome 105 accepted: components of 255 bytes; of 256 are refused
TEST_CASE("tar_name_is_limited_to_255_bytes_path_to_4096") {
  CHECK(convert(Tar().pax(record("path", std::string(255, 'n'))).file("x").end()).layer);
  CHECK(has(refusal_of(Tar().pax(record("path", std::string(256, 'n'))).file("x")), "255"));
  std::string path;
  while (path.size() < 5000) path += "directory/";
  CHECK(has(refusal_of(Tar().pax(record("path", path)).directory("x")), "4096"));
}

// outcome 106 accepted: long paths, 3000 levels
TEST_CASE("tar_directory_depth_is_limited") {
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

// outcome 110 accepted: times of every kind
TEST_CASE("tar_times_are_clamped_to_squashfs_range") {
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

// outcome 94 contained: the root as link, file, FIFO
TEST_CASE("tar_root_entry_must_be_a_directory") {
  CHECK(has(refusal_of(Tar().file(".")), "root"));
  CHECK(has(refusal_of(Tar().symlink("/", "/etc")), "root"));
}

// outcome 129 contained: unknown and old types
TEST_CASE("tar_old_types_are_read_unknown_refused") {
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

// outcome 129 contained: unknown and old types
TEST_CASE("tar_file_name_with_slash_is_refused") {
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

// outcome 121 contained: extended header before a long name; size on a directory
TEST_CASE("tar_size_of_link_or_directory_is_ignored") {
  auto image = image_of(
      Tar().file("f").entry({.name = "l", .type = '1', .size = 512, .link = "f"}).file("g"));
  CHECK(image["l"].links == 2);
  CHECK(image.count("g") == 1);
}

// outcome 119 accepted: global header; one that names entries is contained
TEST_CASE("tar_global_header_changes_nothing") {
  auto image = image_of(Tar().pax(record("comment", "git") + record("mtime", "1"), 'g').file("f"));
  CHECK(image["f"].mtime == 15);
  CHECK(image.size() == 2);
  for (const auto& records : {record("path", "/etc/passwd"), record("linkpath", "x"),
                              record("size", "1"), record("GNU.sparse.size", "9")}) {
    CHECK(has(refusal_of(Tar().pax(records, 'g').file("f")), "a global extended header sets"));
  }
}

// outcome 120 accepted: extended size against the stated one
TEST_CASE("tar_extended_header_size_hides_no_entry") {
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

// outcome 121 contained: extended header before a long name; size on a directory
TEST_CASE("tar_gnu_long_name_yields_to_extended_header") {
  auto image = image_of(
      Tar().pax(record("path", "pax") + record("size", "3")).gnu_long('L', "gnu").file("f", "abc"));
  CHECK(image["pax"].data == "abc");
  CHECK(image.size() == 2);
}

TEST_CASE("layer_bytes_are_independent_of_threads") {
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

// outcome 83 accepted: 300,000 tiny files
// outcome 109 accepted: 20,000 and 100,000 entries in a directory
TEST_CASE("layer_with_100000_entries_is_converted") {
  Tar tar;
  for (int i = 0; i < 100'000; ++i)
    tar.file((i % 2 == 0 ? "one/" : std::to_string(i % 1000) + '/') + std::to_string(i), "x");
  const auto converted = convert(gzip(tar.end()));
  INFO(converted.why());
  REQUIRE(converted.layer);
  CHECK(converted.layer->entries == 100'000);
  CHECK(converted.image().size() == 100'000 + 1 + 1 + 500);
}
