// Files with holes, in GNU's three forms.

#include <cstdio>

#include "unit/image/layer/outcome.hpp"

using namespace spc;
using namespace spc::test;

// outcome 117 accepted: sparse files
TEST_CASE("tar_sparse_formats_are_exact") {
  const std::string expected = std::string(1000, '\0') + std::string(512, 'A') +
                               std::string(400000, '\0') + "BBBB" + std::string(96, '\0');
  const auto size = std::to_string(expected.size());
  const std::string data = std::string(512, 'A') + "BBBB";
  const std::string second = std::to_string(1000 + 512 + 400000);
  Tar tar;
  // old GNU: 4 parts in the header, more in the following block
  std::string old = Header{.name = "old", .type = 'S', .size = 516, .gnu = true}.bytes();
  const auto octal = [](std::uint64_t value) {
    char text[16];
    std::snprintf(text, sizeof text, "%011llo", static_cast<unsigned long long>(value));
    return std::string(text);
  };
  old.replace(386, 11, octal(1000)).replace(398, 11, octal(512));
  for (int i = 1; i < 4; ++i) {
    old.replace(386 + 24 * static_cast<std::size_t>(i), 11, octal(1512))
        .replace(398 + 24 * static_cast<std::size_t>(i), 11, octal(0));
  }
  old[482] = 1;
  old.replace(483, 11, octal(expected.size()));
  std::string more(512, '\0');
  more.replace(0, 11, octal(401512)).replace(12, 11, octal(4));
  tar.raw(Header::sum(old)).raw(more).raw(padded(data));
  // PAX 0.0, 0.1, 1.0
  tar.pax(record("GNU.sparse.size", size) + record("GNU.sparse.numblocks", "2") +
          record("GNU.sparse.offset", "1000") + record("GNU.sparse.numbytes", "512") +
          record("GNU.sparse.offset", second) + record("GNU.sparse.numbytes", "4"))
      .file("p00", data);
  tar.pax(record("GNU.sparse.size", size) + record("GNU.sparse.name", "p01") +
          record("GNU.sparse.map", "1000,512," + second + ",4"))
      .file("GNUSparseFile.0/p01", data);
  tar.pax(record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") +
          record("GNU.sparse.name", "p10") + record("GNU.sparse.realsize", size))
      .file("GNUSparseFile.0/p10", padded("2\n1000\n512\n" + second + "\n4\n") + data);
  auto image = image_of(tar.file("next", "n"));
  for (const char* name : {"old", "p00", "p01", "p10"}) CHECK(image[name].data == expected);
  CHECK(image["next"].data == "n");
  CHECK(image.size() == 6);
}

// outcome 118 refused: sparse maps that lie
TEST_CASE("tar_sparse_map_with_errors_is_refused") {
  const auto sparse = [](const std::string& size, const std::string& map) {
    return reason(Tar()
                      .pax(record("GNU.sparse.size", size) + record("GNU.sparse.map", map))
                      .file("s", "12345678")
                      .end());
  };
  CHECK(has(sparse("100", "0,4,2,4"), "map is wrong"));   // overlapping
  CHECK(has(sparse("100", "50,4,0,4"), "map is wrong"));  // descending
  CHECK(has(sparse("100", "0,4,98,4"), "map is wrong"));  // past the end
  CHECK(has(sparse("2000", "0,4,600,4"),
            "map is wrong"));  // readers disagree about the second part's start
  CHECK(has(sparse("100", "0,4"), "does not fit"));               // less than the data
  CHECK(has(sparse("100", "0,4,50"), "no number"));               // odd
  CHECK(has(sparse("1152921504606846976", "0,8"), "more than"));  // 1 EiB
  const auto in_data = [](const std::string& map) {
    return reason(Tar()
                      .pax(record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") +
                           record("GNU.sparse.realsize", "9"))
                      .file("s", padded(map))
                      .end());
  };
  CHECK(has(in_data("1000000000000000000\n"), "map is wrong"));
  CHECK(has(in_data("2\n0\n1\n"), "map is wrong"));
  CHECK(has(in_data("2\n0\nx\n"), "number"));
  CHECK(has(in_data(std::string(512, '1')), "map is wrong"));
}
