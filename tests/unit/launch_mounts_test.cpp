#include "catch.hpp"
#include "container/protocol.hpp"
#include "launch/mount_spec.hpp"

using namespace spc;

namespace {

std::string refusal(std::string_view text) {
  auto mounts = parse_mounts(text);
  return mounts ? "accepted" : mounts.error().message();
}

}  // namespace

TEST_CASE("a mount's target defaults to its source") {
  const auto mounts = parse_mounts("/scratch").value();
  REQUIRE(mounts.size() == 1);
  CHECK(mounts[0].source == "/scratch");
  CHECK(mounts[0].target == "/scratch");
  CHECK(mounts[0].flags == 0);
}

TEST_CASE("mounts are separated by commas and equal ones count once") {
  const auto mounts = parse_mounts("/a:/b,/c:/d:ro,/a:/b").value();
  REQUIRE(mounts.size() == 2);
  CHECK(mounts[1].target == "/d");
  CHECK(mounts[1].flags == TaskMessage::source_read_only);
}

TEST_CASE("flags are joined by plus") {
  const auto mounts = parse_mounts("/a:/b:ro+bind+noexec+nosuid+x-create=dir").value();
  CHECK(mounts[0].flags == (TaskMessage::source_read_only | TaskMessage::source_not_recursive | TaskMessage::source_no_exec));
}

TEST_CASE("a relative target lies below the container's root") {
  CHECK(parse_mounts("./data").value()[0].source == "./data");
  CHECK(parse_mounts("./data").value()[0].target == "/data");
  CHECK(parse_mounts("/x:././y").value()[0].target == "/y");
}

TEST_CASE("a mount that cannot be meant is refused with the item and the reason") {
  CHECK(refusal("") == "--container-mounts: argument required");
  CHECK(refusal("/a:") == "--container-mounts: \"/a:\": invalid format (hint: SRC[:DST[:FLAGS]])");
  CHECK(refusal("/a,,/b") == "--container-mounts: \"\": invalid format (hint: SRC[:DST[:FLAGS]])");
  CHECK(refusal("/a:/b:ro:x") == "--container-mounts: \"/a:/b:ro:x\": invalid format (hint: SRC[:DST[:FLAGS]])");
  CHECK(refusal("data") ==
        "--container-mounts: \"data\": mount source must be a relative path (beginning with .) or an absolute path");
  CHECK(refusal("/a:b") ==
        "--container-mounts: \"/a:b\": mount target must be a relative path (beginning with .) or an absolute path");
  CHECK(refusal("/a:/b:suid") ==
        "--container-mounts: \"/a:/b:suid\": unknown flag \"suid\" (hint: flags, joined by +: ro, rw, bind, rbind, noexec)");
  CHECK(refusal("/a:/") == "--container-mounts: \"/a:/\": cannot mount on the container's root");
  for (const char* target : {".", "//", "/.", "/..", "./", "././/", "/x/..", "../..", "/x/../../y/.."}) {
    const std::string item = std::string("/a:") + target;
    CHECK(refusal(item) == "--container-mounts: \"" + item + "\": cannot mount on the container's root");
  }
  CHECK(refusal("/a:/x/../y") == "accepted");
  CHECK(refusal("/a:/...") == "accepted");
  CHECK(refusal("/\x1b[31m:/b:no") ==
        "--container-mounts: \"/\\x1b[31m:/b:no\": unknown flag \"no\" (hint: flags, joined by +: ro, rw, bind, rbind, noexec)");
}
