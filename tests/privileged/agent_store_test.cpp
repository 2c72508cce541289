#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "agent/image_store.hpp"
#include "agent/node_setup.hpp"
#include "base/file.hpp"
#include "files.hpp"
#include "protocol/image_record.hpp"
#include "protocol/store_layout.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;
using namespace spc::agent;
namespace fs = std::filesystem;

namespace {

ImageStore fresh_store() {
  fs::remove_all(SPC_STORE_DIR);
  fs::remove_all(SPC_RUN_DIR);
  REQUIRE(set_up_node(12345, 12345));
  return std::move(ImageStore::open(SPC_STORE_DIR)).value();
}

std::string layer_path(const Digest& digest) {
  return SPC_STORE_DIR "/layers/sha256/" + digest.hex() + ".sqsh";
}

void add_layer(const ImageStore& store, const Digest& digest) {
  auto file = std::move(store.new_object()).value();
  REQUIRE(write_all(file.get(), "layer"));
  const auto frozen = store.freeze(std::move(file));
  REQUIRE(frozen);
  REQUIRE(store.publish(frozen->get(), store_layout::layer_path(digest)));
}

void add_record(const Digest& image, std::initializer_list<Digest> layers,
                std::int64_t public_until) {
  ImageRecordHeader header;
  std::memcpy(header.magic, ImageRecordHeader::kMagic, sizeof header.magic);
  header.layer_count = static_cast<std::uint32_t>(layers.size());
  const std::string path = SPC_STORE_DIR "/" + store_layout::record_path(image);
  fs::remove(path);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  for (const Digest& layer : layers)
    file.write(reinterpret_cast<const char*>(layer.bytes.data()), sizeof layer);
  file.close();
  REQUIRE(::chmod(path.c_str(), 0444) == 0);
  const std::string side = SPC_STORE_DIR "/images/" + image.hex();
  std::ofstream(side).close();
  const timespec times[] = {{0, UTIME_OMIT}, {public_until, 0}};
  REQUIRE(::utimensat(AT_FDCWD, side.c_str(), times, 0) == 0);
}

ErrorKind kind_of(const Result<ImageFiles>& image) {
  return image ? ErrorKind::internal : image.error().kind();
}

}  // namespace

TEST_CASE("store_new_layer_is_unnamed_until_published_as_root") {
  const auto store = fresh_store();
  auto file = std::move(store.new_object()).value();
  CHECK(fs::is_empty(SPC_STORE_DIR "/layers/sha256"));
  REQUIRE(write_all(file.get(), "bytes"));
  const auto frozen = store.freeze(std::move(file));
  REQUIRE(frozen);
  CHECK(::write(frozen->get(), "more", 4) == -1);
  CHECK(fs::is_empty(SPC_STORE_DIR "/layers/sha256"));
  REQUIRE(store.publish(frozen->get(), store_layout::layer_path(digest_of(1))));
  struct stat status {};
  REQUIRE(::stat(layer_path(digest_of(1)).c_str(), &status) == 0);
  CHECK(status.st_uid == 0);
  CHECK((status.st_mode & 07777) == 0444);
  CHECK(status.st_size == 5);
}

TEST_CASE("store_layer_with_open_writer_is_refused") {
  const auto store = fresh_store();
  auto file = std::move(store.new_object()).value();
  const UniqueFd writer(::fcntl(file.get(), F_DUPFD_CLOEXEC, 3));
  CHECK_FALSE(store.freeze(std::move(file)));
}

TEST_CASE("store_first_of_two_equal_layers_stays") {
  const auto store = fresh_store();
  add_layer(store, digest_of(1));
  const auto before = fs::last_write_time(layer_path(digest_of(1)));
  const auto second = store.freeze(std::move(store.new_object()).value());
  REQUIRE(second);
  CHECK(store.publish(second->get(), store_layout::layer_path(digest_of(1))));
  CHECK(fs::last_write_time(layer_path(digest_of(1))) == before);
  CHECK(fs::file_size(layer_path(digest_of(1))) == 5);
}

TEST_CASE("store_public_image_opens_for_everyone_in_order") {
  const auto store = fresh_store();
  add_layer(store, digest_of(1));
  add_layer(store, digest_of(2));
  add_record(digest_of(9), {digest_of(2), digest_of(1)}, ::time(nullptr) + 100);
  const auto image = store.open_image(digest_of(9), Audience::everyone);
  REQUIRE(image);
  REQUIRE(image->layers.size() == 2);
  CHECK(image->layers[0].digest == digest_of(2));
  CHECK(image->layers[1].digest == digest_of(1));
}

TEST_CASE("store_private_or_expired_image_needs_admission") {
  const auto store = fresh_store();
  add_layer(store, digest_of(1));
  for (const std::int64_t until :
       {std::int64_t{0}, static_cast<std::int64_t>(::time(nullptr)) - 1}) {
    add_record(digest_of(9), {digest_of(1)}, until);
    CHECK(kind_of(store.open_image(digest_of(9), Audience::everyone)) == ErrorKind::refused);
    CHECK(store.open_image(digest_of(9), Audience::whoever_import_admitted));
  }
}

// outcome 140 refused: object tampered on disk
// outcome 143 accepted: ledger lost
TEST_CASE("store_image_with_missing_or_damaged_parts_is_not_found") {
  const auto store = fresh_store();
  CHECK(kind_of(store.open_image(digest_of(9), Audience::everyone)) == ErrorKind::not_found);
  add_record(digest_of(9), {digest_of(1)}, ::time(nullptr) + 100);
  CHECK(kind_of(store.open_image(digest_of(9), Audience::everyone)) == ErrorKind::not_found);
  fs::resize_file(SPC_STORE_DIR "/records/" + digest_of(9).hex(), sizeof(ImageRecordHeader) + 7);
  CHECK(kind_of(store.open_image(digest_of(9), Audience::everyone)) == ErrorKind::not_found);
  std::ofstream(SPC_STORE_DIR "/records/" + digest_of(8).hex()) << "something else";
  REQUIRE(::chmod((SPC_STORE_DIR "/records/" + digest_of(8).hex()).c_str(), 0444) == 0);
  CHECK(kind_of(store.open_image(digest_of(8), Audience::whoever_import_admitted)) ==
        ErrorKind::not_found);
}

// outcome 140 refused: object tampered on disk
//     untested: bytes changed by root himself in a file of the right owner and mode
TEST_CASE("store_layer_not_owned_read_only_by_root_is_refused") {
  const auto store = fresh_store();
  add_record(digest_of(9), {digest_of(1)}, ::time(nullptr) + 100);
  add_layer(store, digest_of(1));
  REQUIRE(::chmod(layer_path(digest_of(1)).c_str(), 0644) == 0);
  CHECK(kind_of(store.open_image(digest_of(9), Audience::everyone)) == ErrorKind::corrupt);
  REQUIRE(::chmod(layer_path(digest_of(1)).c_str(), 0444) == 0);
  REQUIRE(::chown(layer_path(digest_of(1)).c_str(), 12345, 0) == 0);
  CHECK(kind_of(store.open_image(digest_of(9), Audience::everyone)) == ErrorKind::corrupt);
  fs::remove(layer_path(digest_of(1)));
  fs::create_symlink("/etc/passwd", layer_path(digest_of(1)));
  CHECK_FALSE(store.open_image(digest_of(9), Audience::everyone));
}

// outcome 144 accepted: eviction races with mount
TEST_CASE("store_layer_in_use_is_not_evicted") {
  const auto store = fresh_store();
  add_layer(store, digest_of(1));
  add_record(digest_of(9), {digest_of(1)}, 0);
  {
    const auto image = store.open_image(digest_of(9), Audience::whoever_import_admitted);
    REQUIRE(image);
    const auto evicted = store.evict(digest_of(1));
    REQUIRE_FALSE(evicted);
    CHECK(evicted.error().kind() == ErrorKind::unavailable);
    CHECK(evicted.error().message() == "evict layer " + digest_of(1).str() + ": it is in use");
    CHECK(fs::exists(layer_path(digest_of(1))));
  }
  CHECK(store.evict(digest_of(1)));
  CHECK_FALSE(fs::exists(layer_path(digest_of(1))));
  CHECK(store.evict(digest_of(1)).error().kind() == ErrorKind::not_found);
}

// outcome 144 accepted: eviction races with mount
TEST_CASE("store_layer_held_for_eviction_stays_usable") {
  const auto store = fresh_store();
  add_layer(store, digest_of(1));
  add_record(digest_of(9), {digest_of(1)}, 0);
  // Simulates another step's agent between lock and unlink.
  const UniqueFd evictor(::open(layer_path(digest_of(1)).c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(::flock(evictor.get(), LOCK_EX | LOCK_NB) == 0);
  const auto image = store.open_image(digest_of(9), Audience::whoever_import_admitted);
  REQUIRE(image);
  REQUIRE(fs::remove(layer_path(digest_of(1))));
  CHECK(*read_file(image->layers.at(0).file.get(), 100) == "layer");
}

TEST_CASE("store_image_use_updates_its_record") {
  const auto store = fresh_store();
  add_record(digest_of(9), {}, 0);
  const std::string record = SPC_STORE_DIR "/records/" + digest_of(9).hex();
  const timespec long_ago[] = {{1000, 0}, {2000, 0}};
  REQUIRE(::utimensat(AT_FDCWD, record.c_str(), long_ago, 0) == 0);
  REQUIRE(store.open_image(digest_of(9), Audience::whoever_import_admitted));
  struct stat status {};
  REQUIRE(::stat(record.c_str(), &status) == 0);
  CHECK(status.st_mtim.tv_sec > ::time(nullptr) - 60);
}

TEST_CASE("store_record_not_owned_read_only_by_root_is_refused") {
  const auto store = fresh_store();
  const std::string record = SPC_STORE_DIR "/records/" + digest_of(9).hex();
  const auto opened = [&] {
    return kind_of(store.open_image(digest_of(9), Audience::whoever_import_admitted));
  };
  add_record(digest_of(9), {}, 0);
  CHECK(store.open_image(digest_of(9), Audience::whoever_import_admitted));
  REQUIRE(::chmod(record.c_str(), 0644) == 0);
  CHECK(opened() == ErrorKind::corrupt);
  REQUIRE(::chmod(record.c_str(), 0444) == 0);
  REQUIRE(::chown(record.c_str(), 12345, 12345) == 0);
  CHECK(opened() == ErrorKind::corrupt);
  fs::remove(record);
  REQUIRE(::mkfifo(record.c_str(), 0444) == 0);
  CHECK(opened() == ErrorKind::corrupt);
}

TEST_CASE("store_file_of_import_is_complete_and_owned_by_root") {
  const auto store = fresh_store();
  const std::string path = SPC_STORE_DIR "/names/x";
  const auto put = [&](const char* text) {
    UniqueFd file = std::move(store.new_object()).value();
    REQUIRE(write_all(file.get(), text));
    return store.put("names/x", std::move(store.freeze(std::move(file))).value().get());
  };
  for (const char* text : {"one", "another"}) {
    REQUIRE(put(text));
    CHECK(contents(path) == text);
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK(status.st_uid == 0);
    CHECK((status.st_mode & 07777) == 0444);
  }
  CHECK(store.put("names/x", -1));
  CHECK(store.put("names/x", -1));
  CHECK(fs::is_empty(SPC_STORE_DIR "/names"));
}

TEST_CASE("store_file_replaced_concurrently_is_always_complete") {
  const auto store = fresh_store();
  constexpr int kTimes = 2000;
  const auto put = [&](const std::string& text) {
    UniqueFd file = std::move(store.new_object()).value();
    return write_all(file.get(), text) &&
           store.put("names/x", std::move(store.freeze(std::move(file))).value().get());
  };
  REQUIRE(put("0"));
  std::vector<pid_t> writers;
  for (const char* text : {"one", "another"}) {
    const pid_t writer = ::fork();
    REQUIRE(writer >= 0);
    if (writer > 0) {
      writers.push_back(writer);
      continue;
    }
    bool good = true;
    for (int i = 0; i < kTimes && good; ++i) good = put(text);
    ::_exit(good ? 0 : 1);
  }
  int reads = 0, missing = 0, torn = 0, failed = 0;
  while (!writers.empty()) {
    std::erase_if(writers, [&](pid_t writer) {
      int status = 0;
      const bool ended = ::waitpid(writer, &status, WNOHANG) == writer;
      failed += ended && status != 0 ? 1 : 0;
      return ended;
    });
    for (int i = 0; i < 100; ++i, ++reads) {
      const UniqueFd file(::open(SPC_STORE_DIR "/names/x", O_RDONLY | O_CLOEXEC));
      missing += file ? 0 : 1;
      const auto text = file ? *read_file(file.get(), 100) : "0";
      torn += text == "0" || text == "one" || text == "another" ? 0 : 1;
    }
  }
  CAPTURE(reads);
  CHECK(failed == 0);
  CHECK(missing == 0);
  CHECK(torn == 0);
  CHECK(std::distance(fs::directory_iterator(SPC_STORE_DIR "/names"), {}) == 1);
}

TEST_CASE("store_remains_of_killed_agent_are_replaced") {
  const auto store = fresh_store();
  const auto put = [&](const char* text) {
    UniqueFd file = std::move(store.new_object()).value();
    REQUIRE(write_all(file.get(), text));
    return store.put("records/x", std::move(store.freeze(std::move(file))).value().get());
  };
  const std::string record = SPC_STORE_DIR "/records/x";
  for (const bool replaces : {false, true}) {
    if (replaces) REQUIRE(put("old"));
    std::ofstream(SPC_STORE_DIR "/records/.x") << "left";
    REQUIRE(put("new"));
    CHECK(contents(record) == "new");
    CHECK_FALSE(fs::exists(SPC_STORE_DIR "/records/.x"));
  }
  std::ofstream(SPC_STORE_DIR "/records/.x") << "left";
  CHECK(store.put("records/x", -1));
  CHECK(fs::is_empty(SPC_STORE_DIR "/records"));
}

TEST_CASE("store_of_earlier_version_is_completed") {
  fresh_store();
  for (const char* part : {"records", "names", "grants"})
    fs::remove(fs::path(SPC_STORE_DIR) / part);
  const auto store = ImageStore::open(SPC_STORE_DIR);
  REQUIRE(store);
  CHECK(store->service_uid() == 12345);
  CHECK(fs::is_empty(SPC_STORE_DIR "/records"));
}
