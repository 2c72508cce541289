#include "catch.hpp"
#include "image/store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

using namespace spc;

namespace {

Digest digest_of(char c) { return Digest::parse("sha256:" + std::string(64, c)).value(); }

ImageRecord example() {
  ImageRecord record;
  record.public_until = 12345;
  record.layers = {digest_of('1'), digest_of('2'), digest_of('1')};
  record.settings = std::string("env=A=b\0cmd=x\0", 14);
  record.manifest = "{manifest}";
  record.config = "{config}";
  record.origin = {"registry:5000", "team/app", "linux/amd64", {digest_of('9')}};
  return record;
}

struct TemporaryStore {
  std::filesystem::path path;
  UniqueFd directory;
  TemporaryStore() {
    char name[] = "/tmp/spc-store-XXXXXX";
    path = ::mkdtemp(name);
    for (const char* part : {"layers/sha256", "images", "refs"}) std::filesystem::create_directories(path / part);
    directory = UniqueFd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  ~TemporaryStore() { std::filesystem::remove_all(path); }
  ImageStore open() const { return ImageStore::open(directory.get()).value(); }
};

}  // namespace

TEST_CASE("a record lies as the agent reads it") {
  const std::string bytes = serialize(example());
  ImageRecordHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  CHECK(std::memcmp(header.magic, ImageRecordHeader::kMagic, 8) == 0);
  CHECK(header.layer_count == 3);
  CHECK(header.public_until == 12345);
  CHECK(header.settings.offset == sizeof header + 3 * sizeof(Digest));
  CHECK(bytes.substr(header.manifest.offset, header.manifest.size) == "{manifest}");
  CHECK(std::memcmp(bytes.data() + sizeof header + 32, digest_of('2').bytes.data(), 32) == 0);
}

TEST_CASE("a record is read as it was written, and a damaged one is not read") {
  const std::string bytes = serialize(example());
  const auto back = parse_image_record(bytes).value();
  CHECK(back.layers == example().layers);
  CHECK(back.settings == example().settings);
  CHECK(back.config == "{config}");
  CHECK(back.origin.repository == "team/app");
  CHECK(back.origin.indexes == example().origin.indexes);
  for (std::size_t size = 0; size < bytes.size(); size += 7) CHECK_FALSE(parse_image_record(bytes.substr(0, size)));
  std::string wrong = bytes;
  wrong[8] = 127;  // layer_count
  CHECK_FALSE(parse_image_record(wrong));
}

TEST_CASE("records and references are put and replaced, and nothing else stays") {
  const TemporaryStore temporary;
  const ImageStore store = temporary.open();
  CHECK_FALSE(store.image(digest_of('a')).value());
  ImageRecord record = example();
  REQUIRE(store.write_image(digest_of('a'), record));
  CHECK(store.image(digest_of('a')).value()->public_until == 12345);
  record.public_until = 2;
  REQUIRE(store.write_image(digest_of('a'), record));
  CHECK(store.image(digest_of('a')).value()->public_until == 2);
  struct stat status {};
  CHECK(::stat((temporary.path / "images" / digest_of('a').hex()).c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0444);

  REQUIRE(store.write_ref("r%2Fx:1", {digest_of('a'), 77}));
  REQUIRE(store.write_ref("r%2Fx:1", {digest_of('b'), 78}));
  CHECK(store.ref("r%2Fx:1").value()->manifest == digest_of('b'));
  CHECK(store.ref("r%2Fx:1").value()->asked_at == 78);
  CHECK_FALSE(store.ref("other").value());
  CHECK(std::distance(std::filesystem::directory_iterator(temporary.path / "images"), {}) == 1);
  CHECK(std::distance(std::filesystem::directory_iterator(temporary.path / "refs"), {}) == 1);
}

TEST_CASE("a layer is locked by one store at a time") {
  const TemporaryStore temporary;
  const ImageStore one = temporary.open();
  const ImageStore two = temporary.open();
  {
    const auto lock = one.try_lock(digest_of('a')).value();
    REQUIRE(lock);
    CHECK_FALSE(two.try_lock(digest_of('a')).value());
    CHECK(two.try_lock(digest_of('b')).value());
  }
  CHECK(two.try_lock(digest_of('a')).value());
}
