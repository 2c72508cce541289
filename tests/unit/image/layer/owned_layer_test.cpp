// Layers whose owner table has two entries: the owners in a copy.

#include <unistd.h>

#include "unit/catch2_compat.hpp"
#include "unit/has.hpp"
#include "unit/image/samples/verify_parts.hpp"
#include "unit/image/samples/verify_sample.hpp"
#include "verify/verify.hpp"

using namespace spc;
using namespace spc::test;

namespace {

constexpr std::uint32_t kUser = 2001, kGroup = 2100;

/// Makes a copy as the agent does.
UniqueFd copy_of(std::string image) {
  const auto end = get<std::uint64_t>(image, kOwnerTable);
  put(image, end - 8, kUser);
  put(image, end - 4, kGroup);
  return memory_file(image);
}

}  // namespace

TEST_CASE("owned_layer_has_second_owner_and_same_content") {
  for (const auto compression : {LayerCompression::lz4, LayerCompression::zstd}) {
    const std::string one = sample_image(compression);
    const std::string two = sample_image(compression, LayerFormat::owned_squashfs);
    CHECK(get<std::uint16_t>(one, kOwners) == 1);
    REQUIRE(get<std::uint16_t>(two, kOwners) == 2);
    CHECK(verify_layer(std::as_bytes(std::span(two))));
    const Image wanted = read_image(memory_file(one).get()), owned = read_image(copy_of(two).get());
    REQUIRE(owned.size() == wanted.size());
    for (const auto& [path, file] : owned) {
      const std::string& name = path;
      CAPTURE(name);
      CHECK(file.uid == kUser);
      CHECK(file.gid == kGroup);
      CHECK(file.data == wanted.at(path).data);
      CHECK(file.mode == wanted.at(path).mode);
    }
  }
}

TEST_CASE("owned_layer_with_user_group_or_as_copy_is_refused") {
  const std::string two = sample_image(LayerCompression::zstd, LayerFormat::owned_squashfs);
  Parts parts(two);
  REQUIRE(parts.image() == two);
  put(parts.inodes, parts.inode_offset("note") + 6, std::uint16_t{0});
  const std::string mixed = parts.image(), copy = contents(copy_of(two).get());
  for (const auto& [image, why] :
       {std::pair(mixed, "its owner is not 0"), std::pair(copy, "an owner other than 0")}) {
    const auto verified = verify_layer(std::as_bytes(std::span(image)));
    REQUIRE_FALSE(verified);
    CHECK(has(verified.error().message(), why));
  }
}
