#include "launch/site/tag_memory.hpp"

#include "unit/test.hpp"

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

TEST_CASE("of many tags the latest are remembered, each until its time") {
  TagMemory memory;
  for (int i = 0; i < 100; ++i) {
    memory.add("r/a:" + std::to_string(i), {.asked_at = i, .tag_ttl = 0, .job_ttl = 60, .answer = "r/a@sha256:0"}, 0, 100 + i);
  }
  CHECK(memory.until() == 199);
  const std::string text = memory.str(1000);
  CHECK(text.size() <= 1000);
  const TagMemory back = TagMemory::parse(text + "no line\nx y z\n\n");
  REQUIRE(back.find("r/a:99", 0));
  CHECK(back.find("r/a:99", 0)->asked_at == 99);
  CHECK_FALSE(back.find("r/a:99", 199));
  CHECK_FALSE(back.find("r/a:0", 0));
  CHECK(back.str(1000) == text);

  memory.add("r/a:99", {.asked_at = 7, .tag_ttl = 0, .job_ttl = 0, .answer = {}}, 150, 300);
  REQUIRE(memory.find("r/a:99", 150));
  CHECK(memory.find("r/a:99", 150)->answer.empty());
  CHECK_FALSE(memory.find("r/a:50", 0));  // its time was over
  memory.add("r/a b", {}, 0, 1);
  CHECK_FALSE(memory.find("r/a b", 0));
}
