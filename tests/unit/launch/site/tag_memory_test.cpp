#include "launch/site/submit.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("tag_memory_entry_survives_serialization") {
  const RememberedTag tag{.asked_at = 17, .tag_ttl = 1, .job_ttl = 60, .answer = "r/a:t@sha256:0"};
  const auto back = RememberedTag::parse(tag.str());
  REQUIRE(back);
  CHECK((back->asked_at == 17 && back->tag_ttl == 1 && back->job_ttl == 60));
  CHECK(back->answer == tag.answer);
  const auto none = RememberedTag::parse(
      RememberedTag{.asked_at = 17, .tag_ttl = 0, .job_ttl = 0, .answer = {}}.str());
  REQUIRE(none);
  CHECK(none->answer.empty());
  for (const char* text : {"", " ", "17", "17 0 0", "x 0 0 a", "17 0 -x a", "17 0 0 a b",
                           "99999999999999999999 0 0 a"}) {
    CHECK_FALSE(RememberedTag::parse(text));
  }
}

TEST_CASE("tag_memory_keeps_latest_until_expiry") {
  TagMemory memory;
  for (int i = 0; i < 100; ++i) {
    memory.add("r/a:" + std::to_string(i),
               {.asked_at = i, .tag_ttl = 0, .job_ttl = 60, .answer = "r/a@sha256:0"}, 0, 100 + i);
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

  memory.add("r/a:99", {.asked_at = 107, .tag_ttl = 0, .job_ttl = 0, .answer = {}}, 150, 300);
  REQUIRE(memory.find("r/a:99", 150));
  CHECK(memory.find("r/a:99", 150)->answer.empty());
  CHECK_FALSE(memory.find("r/a:50", 0));  // it had expired
  memory.add("r/a b", {}, 0, 1);
  CHECK_FALSE(memory.find("r/a b", 0));
}

TEST_CASE("tag_memory_later_question_wins") {
  TagMemory memory;
  memory.add("r/a:t", {.asked_at = 20, .tag_ttl = 0, .job_ttl = 60, .answer = "later"}, 20, 80);
  memory.add("r/a:t", {.asked_at = 10, .tag_ttl = 0, .job_ttl = 60, .answer = "earlier"}, 21, 81);
  CHECK(memory.find("r/a:t", 22)->answer == "later");
  memory.add("r/a:t", {.asked_at = 20, .tag_ttl = 0, .job_ttl = 60, .answer = "again"}, 23, 83);
  CHECK(memory.find("r/a:t", 24)->answer == "again");
}

TEST_CASE("tag_memory_is_safe_for_concurrent_sruns") {
  constexpr int kSruns = 4, kTags = 10, kSeconds = 20;
  const RememberedTag tag{.asked_at = 1, .tag_ttl = 0, .job_ttl = 60, .answer = "r/a@sha256:0"};
  const std::string begin = "tags-test-" + std::to_string(::getpid()) + "/";
  remember_tag(begin, tag, kSeconds);
  if (!remembered_tag(begin)) return;  // no keyrings here
  for (int srun = 0; srun < kSruns; ++srun) {
    if (::fork() != 0) continue;
    for (int i = 0; i < kTags; ++i)
      remember_tag(begin + std::to_string(srun) + ":" + std::to_string(i), tag, kSeconds);
    ::_exit(0);
  }
  while (::wait(nullptr) > 0) continue;
  int found = 0;
  for (int srun = 0; srun < kSruns; ++srun) {
    for (int i = 0; i < kTags; ++i)
      found += remembered_tag(begin + std::to_string(srun) + ":" + std::to_string(i)) ? 1 : 0;
  }
  CHECK(found >= kSruns * kTags - 2);  // on a busy machine one may have waited too long
}
