#include "registry/signature.hpp"

#include "unit/catch2_compat.hpp"
#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

std::string payload_of(const std::string& more_critical = "", const std::string& more = "") {
  return R"({"critical":{"identity":{"docker-reference":"r/a"},)"
         R"("image":{"docker-manifest-digest":"sha256:)" +
         kHex + R"("},"type":"cosign container image signature")" + more_critical + "}" + more +
         "}";
}

}  // namespace

TEST_CASE("signature_payload_is_parsed_strictly") {
  const auto payload =
      SignedPayload::parse(payload_of("", R"(,"optional":{"creator":"x"})")).value();
  CHECK(payload.manifest == digest_of('a'));
  CHECK(payload.name == "r/a");
  CHECK(refused(SignedPayload::parse(payload_of(R"(,"more":1)")), "critical.more: is unknown"));
  CHECK(refused(SignedPayload::parse(payload_of("", R"(,"more":1)")), "more: is unknown"));
  CHECK(refused(SignedPayload::parse(payload_of(R"(,"type":"x")")), "type"));
  CHECK(refused(SignedPayload::parse(R"({"critical":{"type":"atomic container signature"}})"),
                "critical.type"));
  CHECK(refused(SignedPayload::parse("[]"), "is not a JSON object"));
}

TEST_CASE("signatures_kept_are_the_latest_without_duplicates") {
  std::vector<ImageSignature> kept;
  for (int i = 0; i < 40; ++i) kept = merged({{"{}", std::to_string(i), "key"}}, kept);
  CHECK(kept.size() == 16);
  CHECK(kept.front().signature == "39");
  CHECK(merged({kept.back()}, kept).size() == 16);
  const auto again = parse_kept_signatures(serialize(kept));
  REQUIRE(again.size() == kept.size());
  CHECK(again.back().signature == kept.back().signature);
  CHECK(again.back().key == "key");
  CHECK(parse_kept_signatures(std::string_view("signature=x\0key", 15)).empty());
}
