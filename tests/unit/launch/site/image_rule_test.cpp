// Who may use which images: the texts of `allowed_images`.

#include "launch/policy/image_rule.hpp"

#include "launch/policy/key_checks.hpp"
#include "unit/test.hpp"

using namespace spc;

TEST_CASE("a rule is a pattern and conditions") {
  const auto rule = ImageRule::parse("nvcr.io/nvidia/*  group=ai,100 partition=gpu user=ann");
  REQUIRE(rule);
  CHECK(*rule == ImageRule{"nvcr.io/nvidia/*", {"ann"}, {"ai", "100"}, {"gpu"}});
  CHECK(rule->fits("nvcr.io/nvidia/pytorch"));
  CHECK(rule->fits("nvcr.io/nvidia/k8s/cuda"));
  CHECK_FALSE(rule->fits("nvcr.io/nvidia"));
  CHECK_FALSE(rule->fits("nvcr.io.example.org/nvidia/pytorch"));
}

TEST_CASE("what is no rule is refused where the configuration is read") {
  for (const char* text : {"", " ", "user=ann", "x user", "x user=", "x user=ann,", "x owner=ann",
                           "x y", "x\nuser=ann"}) {
    CAPTURE(text);
    CHECK_FALSE(key::is_image_rule(text));
  }
  for (const char* text : {"*", "docker.io/library/*", "x user=1000"})
    CHECK(key::is_image_rule(text));
}
