#include "base/hash.hpp"
#include "image/store/store.hpp"
#include "unit/catch2_compat.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

ImageRecord example() {
  ImageRecord record;
  record.layer_format = kLayerFormat;
  record.layers = {digest_of('1'), digest_of('2'), digest_of('1')};
  record.settings = std::string("env=A=b\0cmd=x\0", 14);
  record.manifest = "{manifest}";
  record.config = "{config}";
  return record;
}

NamedImage named(const char* name, char manifest, std::int64_t asked_at) {
  return {.name = name, .manifest = digest_of(manifest), .asked_at = asked_at};
}

struct TemporaryStore {
  std::filesystem::path path;
  UniqueFd directory;
  TemporaryStore() {
    char name[] = "/tmp/spc-store-XXXXXX";
    path = ::mkdtemp(name);
    for (const char* part : {"layers/sha256", "records", "names", "grants", "images"})
      std::filesystem::create_directories(path / part);
    directory = UniqueFd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  ~TemporaryStore() { std::filesystem::remove_all(path); }
  ImageStore open() const { return ImageStore::open(directory.get()).value(); }
};

}  // namespace

TEST_CASE("image_record_layout_matches_the_agent") {
  const std::string bytes = serialize(example());
  ImageRecordHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  CHECK(std::memcmp(header.magic, ImageRecordHeader::kMagic, 8) == 0);
  CHECK(header.layer_count == 3);
  CHECK(header.layer_format == kLayerFormat);
  CHECK(header.settings.offset == sizeof header + 3 * sizeof(Digest));
  CHECK(bytes.substr(header.manifest.offset, header.manifest.size) == "{manifest}");
  CHECK(std::memcmp(bytes.data() + sizeof header + 32, digest_of('2').bytes.data(), 32) == 0);
}

TEST_CASE("image_record_damaged_is_refused") {
  const std::string bytes = serialize(example());
  const auto back = parse_image_record(bytes).value();
  CHECK(back.layers == example().layers);
  CHECK(back.settings == example().settings);
  CHECK(back.config == "{config}");
  for (std::size_t size = 0; size < bytes.size(); size += 7)
    CHECK_FALSE(parse_image_record(bytes.substr(0, size)));
  std::string wrong = bytes;
  wrong[8] = 127;  // layer_count
  CHECK_FALSE(parse_image_record(wrong));
}

TEST_CASE("image_origin_survives_serialization") {
  ImageOrigin team;
  team.registry = "registry:5000";
  team.repository = "team/app";
  team.name = "registry:5000/team/app:1";
  team.platform = "linux/amd64";
  ImageOrigin alice;
  alice.user = 1000;
  alice.public_until = 5;
  ImageOrigins origins;
  origins.add(team);
  origins.add(alice);
  origins = ImageOrigins::parse(origins.serialize());
  REQUIRE(origins.all().size() == 2);
  const ImageOrigin* back = origins.find("registry:5000/team/app");
  REQUIRE(back != nullptr);
  CHECK(back->name == team.name);
  CHECK(back->public_until == 0);
  CHECK(origins.find("user=1000") != nullptr);
  CHECK(origins.find("user=1001") == nullptr);
  CHECK(origins.find("registry:5000/team/ap") == nullptr);
  CHECK(origins.public_until() == 5);

  // Add the same place again.
  team.platform = "linux/arm64";
  origins.add(team);
  CHECK(origins.find("registry:5000/team/app")->platform == "linux/arm64");
  CHECK(origins.all().size() == 2);
  CHECK(ImageOrigins::parse("name=x").all().empty());
}

// outcome 142 accepted: two formats share a store
TEST_CASE("layer_format_changes_name_and_record") {
  CHECK(layer_name(digest_of('a'), 1) == digest_of('a'));
  CHECK(layer_name(digest_of('a'), 2) != digest_of('a'));
  CHECK(layer_name(digest_of('a'), 2) != layer_name(digest_of('a'), 3));
  const TemporaryStore temporary;
  const ImageStore store = temporary.open();
  ImageRecord record = example();
  record.layer_format = kLayerFormat + 1;
  REQUIRE(store.write_image(digest_of('a'), record));
  CHECK_FALSE(store.image(digest_of('a')).value());
}

TEST_CASE("layer_fitted_name_depends_on_layers_below") {
  const Digest blobs[] = {digest_of('a'), digest_of('b'), digest_of('c')};
  const Digest others[] = {digest_of('b'), digest_of('b'), digest_of('c')};
  const auto names = layer_names(blobs);
  CHECK(names[2].alone == layer_name(digest_of('c')));
  CHECK(names[2].alone == layer_names(others)[2].alone);
  CHECK(names[2].fitted != layer_names(others)[2].fitted);
  CHECK(names[0].fitted != names[0].alone);
  CHECK(names[1].fitted == layer_names(std::span(blobs).first(2))[1].fitted);
}

namespace {

std::vector<std::pair<std::size_t, std::size_t>> planned(std::vector<std::uint64_t> sizes) {
  std::vector<std::pair<std::size_t, std::size_t>> runs;
  for (const LayerRun& run : plan_runs(sizes)) runs.emplace_back(run.begin, run.end);
  return runs;
}

Digest blob_of(std::size_t number) { return Sha256::of(std::to_string(number)); }

}  // namespace

TEST_CASE("layer_runs_merge_small_layers_of_long_images") {
  constexpr std::uint64_t kSmall = 16 << 20;
  CHECK(planned({}).empty());
  CHECK(planned(std::vector<std::uint64_t>(16, 1)).size() == 16);
  CHECK(planned(std::vector<std::uint64_t>(17, kSmall + 1)).size() == 17);
  CHECK(planned(std::vector<std::uint64_t>(500, kSmall)).size() == 15);
  using Runs = std::vector<std::pair<std::size_t, std::size_t>>;
  CHECK(planned(std::vector<std::uint64_t>(17, 1)) == Runs{{0, 8}, {8, 16}, {16, 17}});
  std::vector<std::uint64_t> sizes(20, 1);
  sizes[3] = sizes[12] = kSmall + 1;
  CHECK(planned(sizes) == Runs{{0, 3}, {3, 4}, {4, 12}, {12, 13}, {13, 20}});
}

TEST_CASE("layer_runs_agree_for_common_base") {
  std::vector<std::uint64_t> sizes(100, 1);
  sizes[20] = sizes[90] = 1 << 30;
  const auto all = plan_runs(sizes);
  for (std::size_t count = 17; count < sizes.size(); ++count) {
    const auto some = plan_runs(std::span(sizes).first(count));
    REQUIRE(some.back().end == count);
    for (std::size_t i = 0; i + 1 < some.size(); ++i) REQUIRE(some[i] == all[i]);
  }
}

TEST_CASE("layer_run_name_depends_on_blobs_and_start") {
  std::vector<Digest> blobs;
  std::set<Digest> known;
  for (std::size_t i = 0; i < 40; ++i) blobs.push_back(blob_of(i));
  const auto names = layer_names(blobs);
  for (const LayerNames& one : names) known.insert({one.alone, one.fitted});
  for (std::size_t begin = 0; begin < 40; ++begin) {
    for (std::size_t end = begin + 2; end <= 40; ++end)
      REQUIRE(known.insert(merged_name(begin, names[end - 1])).second);
  }
  blobs[0] = blob_of(99);
  CHECK(merged_name(8, layer_names(blobs)[15]) != merged_name(8, names[15]));
}

TEST_CASE("image_record_files_match_layers_or_runs") {
  std::vector<Digest> blobs;
  for (std::size_t i = 0; i < 20; ++i) blobs.push_back(blob_of(i));
  const auto names = layer_names(blobs);
  std::vector<Digest> files;
  for (const LayerNames& one : names) files.push_back(one.alone);
  files[7] = names[7].fitted;
  CHECK(runs_of(files, names)->size() == 20);  // as written by versions that did not merge layers
  files.erase(files.begin() + 3, files.begin() + 10);
  CHECK_FALSE(runs_of(files, names));
  files.insert(files.begin() + 3, merged_name(3, names[9]));
  REQUIRE(runs_of(files, names));
  CHECK((*runs_of(files, names))[3] == LayerRun{3, 10});
  CHECK_FALSE(runs_of(std::span(files).first(13), names));
  CHECK_FALSE(runs_of(files, std::span(names).first(19)));
  files[3] = merged_name(2, names[9]);
  CHECK_FALSE(runs_of(files, names));
  CHECK_FALSE(runs_of({}, names));
}

TEST_CASE("store_delivery_counts_for_layer_and_origin") {
  const TemporaryStore temporary;
  const ImageStore store = temporary.open();
  CHECK_FALSE(store.was_delivered(digest_of('a'), "r/x"));
  REQUIRE(store.note_delivery(digest_of('a'), "r/xy"));
  REQUIRE(store.note_delivery(digest_of('a'), "r/x"));
  REQUIRE(store.note_delivery(digest_of('a'), "r/x"));
  CHECK(store.was_delivered(digest_of('a'), "r/x"));
  CHECK(store.was_delivered(digest_of('a'), "r/xy"));
  CHECK_FALSE(store.was_delivered(digest_of('a'), "r"));
  CHECK_FALSE(store.was_delivered(digest_of('a'), "/x"));
  CHECK_FALSE(store.was_delivered(digest_of('b'), "r/x"));
  // A file truncated by a full disk counts as neither this origin nor another one with a name of
  // that form.
  const auto file = temporary.path / "images/delivered" / digest_of('c').hex();
  { std::ofstream(file) << "=registry/te"; }
  CHECK_FALSE(store.was_delivered(digest_of('c'), "registry/te"));
  REQUIRE(store.note_delivery(digest_of('c'), "registry/team"));
  CHECK(store.was_delivered(digest_of('c'), "registry/team"));
  CHECK_FALSE(store.was_delivered(digest_of('c'), "registry/te"));
}

TEST_CASE("store_grant_belongs_to_one_user") {
  const TemporaryStore temporary;
  const ImageStore store = temporary.open();
  CHECK_FALSE(store.grant(7, "r%2Fx:1"));
  REQUIRE(store.write_grant(7, named("r%2Fx:1", 'a', 77)));
  CHECK(store.grant(7, "r%2Fx:1")->asked_at == 77);
  CHECK_FALSE(store.grant(8, "r%2Fx:1"));
  CHECK_FALSE(store.public_name("r%2Fx:1"));
  REQUIRE(store.forget_names({digest_of('a')}));
  CHECK_FALSE(store.grant(7, "r%2Fx:1"));
}

TEST_CASE("store_import_slots_per_user_are_limited") {
  const TemporaryStore temporary;
  const ImageStore store = temporary.open();
  const ImageStore other = temporary.open();
  auto first = other.try_slot(7, 2).value();
  const auto second = store.try_slot(7, 2).value();
  REQUIRE(first);
  REQUIRE(second);
  const ImageStore third = temporary.open();
  CHECK_FALSE(third.try_slot(7, 2).value());
  CHECK(third.try_slot(8, 2).value());
  first.reset();
  CHECK(third.try_slot(7, 2).value());
}

TEST_CASE("store_records_and_references_are_replaced") {
  const TemporaryStore temporary;
  const ImageStore store = temporary.open();
  CHECK_FALSE(store.image(digest_of('a')).value());
  ImageRecord record = example();
  REQUIRE(store.write_image(digest_of('a'), record));
  CHECK(store.image(digest_of('a')).value()->config == "{config}");
  record.config = "{other}";
  REQUIRE(store.write_image(digest_of('a'), record));
  CHECK(store.image(digest_of('a')).value()->config == "{other}");
  struct stat status {};
  CHECK(::stat((temporary.path / "records" / digest_of('a').hex()).c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0444);

  CHECK(store.public_until(digest_of('a')) == 0);
  REQUIRE(store.set_public_until(digest_of('a'), 12345));
  CHECK(store.public_until(digest_of('a')) == 12345);

  REQUIRE(store.write_name(named("r%2Fx:1", 'a', 77)));
  REQUIRE(store.write_name(named("r%2Fx:1", 'b', 78)));
  CHECK(store.public_name("r%2Fx:1")->manifest == digest_of('b'));
  CHECK(store.public_name("r%2Fx:1")->asked_at == 78);
  CHECK_FALSE(store.public_name("other"));
  for (const char* part : {"records", "names", "images"}) {
    CHECK(std::distance(std::filesystem::directory_iterator(temporary.path / part), {}) == 1);
  }
  // A file with the same key and another name, or not a regular file.
  const auto file = temporary.path / "names" / name_key("r%2Fx:1").hex();
  std::filesystem::rename(file, temporary.path / "names" / name_key("other").hex());
  CHECK_FALSE(store.public_name("other"));
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  CHECK_FALSE(store.public_name("r%2Fx:1"));
  CHECK(store.set_public_until(digest_of('a'), 0));
  CHECK(store.public_until(digest_of('a')) == 0);
}

TEST_CASE("store_remains_of_killed_writer_are_removed") {
  const TemporaryStore at;
  const ImageStore store = at.open();
  REQUIRE(store.write_image(digest_of('1'), example()));
  const auto left = [&](char image) {
    return at.path / "records" / ("." + digest_of(image).hex());
  };
  for (const char image : {'1', '2', '3'}) std::ofstream(left(image)) << "half";
  for (const char image : {'1', '2'}) {
    std::filesystem::last_write_time(
        left(image), std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  }
  const auto inventory = take_inventory(store);
  REQUIRE(inventory);
  std::vector<Digest> found;
  for (const auto& image : inventory->images) found.push_back(image.manifest);
  CHECK(found == std::vector{digest_of('1'), digest_of('2')});  // 3 may be about to be written
  for (const Digest& image : found) REQUIRE(store.remove_image(image));
  CHECK_FALSE(std::filesystem::exists(left('1')));
  CHECK_FALSE(std::filesystem::exists(left('2')));
  CHECK(std::filesystem::exists(left('3')));
}

TEST_CASE("named_image_survives_serialization") {
  NamedImage image = named("r%2Fx:1", 'a', 77);
  image.add_indexes(std::vector<Digest>(2, digest_of('8')));
  const auto back = NamedImage::parse(image.str());
  REQUIRE(back);
  CHECK(back->name == "r%2Fx:1");
  CHECK(back->indexes == std::vector<Digest>{digest_of('8')});
  const std::string text = image.str();
  for (std::size_t size = 0; size < text.size(); ++size)
    CHECK_FALSE(NamedImage::parse(text.substr(0, size)));
  // Use the maximal length of a file.
  image.name = std::string(255, 'n');
  for (char one : std::string("0123456789abcdef")) image.add_indexes({digest_of(one)});
  CHECK(image.str().size() <= 4096);
  CHECK(image.indexes.size() == 16);
}

TEST_CASE("store_layer_lock_is_exclusive") {
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
