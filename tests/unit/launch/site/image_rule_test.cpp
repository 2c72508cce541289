// Permission to use images: the rules of `allowed_images`.

#include "config/config.hpp"

#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("image_rule_has_pattern_and_conditions") {
  const auto rule = ImageRule::parse("nvcr.io/nvidia/*  group=ai,100 partition=gpu user=ann");
  REQUIRE(rule);
  CHECK(*rule == ImageRule{"nvcr.io/nvidia/*", {"ann"}, {"ai", "100"}, {"gpu"}});
  CHECK(rule->fits("nvcr.io/nvidia/pytorch"));
  CHECK(rule->fits("nvcr.io/nvidia/k8s/cuda"));
  CHECK_FALSE(rule->fits("nvcr.io/nvidia"));
  CHECK_FALSE(rule->fits("nvcr.io.example.org/nvidia/pytorch"));
}

TEST_CASE("image_rule_invalid_is_refused") {
  for (const char* text : {"", " ", "user=ann", "x user", "x user=", "x user=ann,", "x owner=ann",
                           "x y", "x\nuser=ann"}) {
    CAPTURE(text);
    CHECK_FALSE(key::kImageRule.check(text));
  }
  for (const char* text : {"*", "docker.io/library/*", "x user=1000"})
    CHECK(key::kImageRule.check(text));
}
