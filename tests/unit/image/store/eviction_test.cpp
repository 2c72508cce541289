#include "image/store/eviction.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

constexpr std::int64_t kNow = 1'000'000;
constexpr std::int64_t kDay = 24 * 3600;

StoredRecord image(char name, std::int64_t last_used, std::vector<char> layers) {
  StoredRecord record{.manifest = digest_of(name), .last_used = last_used, .layers = {}};
  for (const char layer : layers) record.layers.push_back(digest_of(layer));
  return record;
}

StoredLayer layer(char name, std::uint64_t bytes, std::int64_t written = kNow) {
  return {digest_of(name), bytes, written};
}

Kept nothing_kept() {
  return {.layers = {}, .is_in_use = [](const Digest&) { return false; }};
}

std::vector<Digest> names(const std::vector<StoredRecord>& images) {
  std::vector<Digest> all;
  for (const auto& one : images) all.push_back(one.manifest);
  return all;
}

std::set<Digest> names(const std::vector<StoredLayer>& layers) {
  std::set<Digest> all;
  for (const auto& one : layers) all.insert(one.name);
  return all;
}

}  // namespace

TEST_CASE("eviction_frees_to_low_watermark_within_limit") {
  const StoreSpace space{.total = 100'000, .used = 85'000, .free = 15'000, .free_inodes = 9};
  const StoreLimits limits{
      .max_bytes = 0, .high_percent = 90, .low_percent = 80, .layer_bytes = 50'000};
  CHECK(bytes_to_free(limits, space, 5'000) == 0);
  CHECK(bytes_to_free(limits, space, 5'001) == 10'001);
  CHECK(bytes_to_free(limits, space, 20'000) == 25'000);
  StoreLimits none = limits;
  none.high_percent = none.low_percent = 100;
  CHECK(bytes_to_free(none, space, 14'000) == 1'000);  // two percent stay free
  CHECK(bytes_to_free(none, space, 100) == 0);
  none.max_bytes = 51'000;
  CHECK(bytes_to_free(none, space, 1'000) == 0);
  CHECK(bytes_to_free(none, space, 3'000) == 2'000);
}

TEST_CASE("store_space_beside_layers_respects_limit") {
  const StoreSpace space{.total = 100'000, .used = 85'000, .free = 15'000, .free_inodes = 9};
  CHECK(fits_beside({.layer_bytes = 90'000}, space, 15'000));
  CHECK(!fits_beside({.layer_bytes = 0}, space, 15'001));
  CHECK(fits_beside({.max_bytes = 60'000, .layer_bytes = 50'000}, space, 10'000));
  CHECK(!fits_beside({.max_bytes = 60'000, .layer_bytes = 50'000}, space, 10'001));
}

TEST_CASE("eviction_removes_least_recently_used_images") {
  const StoreInventory inventory{
      .images = {image('a', 300, {'1', '2'}), image('b', 100, {'1', '3'}),
                 image('c', 200, {'4', '4'})},
      .layers = {layer('1', 10), layer('2', 20), layer('3', 30), layer('4', 40)}};
  auto plan = plan_eviction(inventory, 0, nothing_kept(), kNow);
  CHECK(plan.images.empty());
  plan = plan_eviction(inventory, 30, nothing_kept(), kNow);
  CHECK(names(plan.images) == std::vector{digest_of('b')});
  CHECK(names(plan.layers) == std::set{digest_of('3')});
  CHECK(plan.bytes == 30);
  plan = plan_eviction(inventory, 31, nothing_kept(), kNow);
  CHECK(names(plan.images) == std::vector{digest_of('b'), digest_of('c')});
  CHECK(plan.bytes == 70);
  plan = plan_eviction(inventory, 1'000, nothing_kept(), kNow);
  CHECK(plan.bytes == 100);
}

// outcome 144 accepted: eviction races with mount
TEST_CASE("eviction_keeps_used_needed_and_recent_layers") {
  const StoreInventory inventory{
      .images = {image('a', 100, {'1'}), image('b', 200, {'2', '3'}), image('c', kNow - 5, {'4'}),
                 image('d', 300, {'5'})},
      .layers = {layer('1', 10), layer('2', 20), layer('3', 30), layer('4', 40), layer('5', 50)}};
  const Kept kept{.layers = {digest_of('2')},
                  .is_in_use = [](const Digest& one) { return one == digest_of('1'); }};
  const auto plan = plan_eviction(inventory, 1'000, kept, kNow);
  CHECK(names(plan.images) == std::vector{digest_of('b'), digest_of('d')});
  CHECK(names(plan.layers) == std::set{digest_of('3'), digest_of('5')});
}

TEST_CASE("eviction_removes_unreferenced_layers_after_a_day") {
  const StoreInventory inventory{.images = {image('a', 100, {'1'})},
                                 .layers = {layer('1', 10, 0), layer('2', 20, kNow - kDay - 1),
                                            layer('3', 30, kNow - kDay), layer('4', 40, 0)}};
  const Kept kept{.layers = {},
                  .is_in_use = [](const Digest& one) { return one == digest_of('4'); }};
  const auto plan = plan_eviction(inventory, 0, kept, kNow);
  CHECK(plan.images.empty());
  CHECK(names(plan.layers) == std::set{digest_of('2')});
}

TEST_CASE("image_removal_takes_unshared_layers") {
  const StoreInventory inventory{
      .images = {image('a', 1, {'1', '2', '2'}), image('b', kNow, {'1', '3'})},
      .layers = {layer('1', 10), layer('2', 20), layer('3', 30)}};
  auto plan = plan_removal(inventory, {digest_of('a')}, nothing_kept());
  CHECK(names(plan.images) == std::vector{digest_of('a')});
  CHECK(names(plan.layers) == std::set{digest_of('2')});
  CHECK(plan.bytes == 20);
  plan = plan_removal(inventory, {digest_of('a'), digest_of('b')}, nothing_kept());
  CHECK(plan.bytes == 60);
  plan = plan_removal(
      inventory, {digest_of('b')},
      {.layers = {}, .is_in_use = [](const Digest& one) { return one == digest_of('3'); }});
  CHECK(names(plan.images) == std::vector{digest_of('b')});
  CHECK(plan.layers.empty());
  CHECK(plan.staying == 1);
  CHECK(plan_removal(inventory, {digest_of('9')}, nothing_kept()).images.empty());
}

TEST_CASE("store_cleaning_removes_only_unusable_objects") {
  StoreInventory inventory{
      .images = {image('a', 1, {'1'}), image('b', 1, {'2', '9'}), image('c', 1, {})},
      .layers = {layer('1', 10, 0), layer('2', 20, kNow), layer('3', 30, 0),
                 layer('4', 40, kNow - kDay + 1)}};
  inventory.images[0].layer_format = inventory.images[1].layer_format = 1;
  const auto plan = plan_cleaning(inventory, nothing_kept(), kNow);
  CHECK(names(plan.images) ==
        std::vector{digest_of('b'), digest_of('c')});  // lacks a layer; cannot be read
  CHECK(names(plan.layers) == std::set{digest_of('2'), digest_of('3')});
  CHECK(plan.bytes == 50);
}
