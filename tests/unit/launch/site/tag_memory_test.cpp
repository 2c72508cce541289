#include "launch/site/tag_memory.hpp"

#include "unit/catch.hpp"

using namespace spc;

TEST_CASE("what is remembered of a tag is read as it was written") {
  const RememberedTag tag{.asked_at = 17, .tag_ttl = 1, .job_ttl = 60, .answer = "r/a:t@sha256:0"};
  const auto back = RememberedTag::parse(tag.str());
  REQUIRE(back);
  CHECK((back->asked_at == 17 && back->tag_ttl == 1 && back->job_ttl == 60));
  CHECK(back->answer == tag.answer);
  const auto none = RememberedTag::parse(RememberedTag{.asked_at = 17, .tag_ttl = 0, .job_ttl = 0, .answer = {}}.str());
  REQUIRE(none);
  CHECK(none->answer.empty());
  for (const char* text : {"", " ", "17", "17 0 0", "x 0 0 a", "17 0 -x a", "17 0 0 a b", "99999999999999999999 0 0 a"}) {
    CHECK_FALSE(RememberedTag::parse(text));
  }
}
