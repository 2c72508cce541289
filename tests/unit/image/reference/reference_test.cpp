#include "reference/reference.hpp"
#include "reference/request.hpp"
#include "unit/catch2_compat.hpp"

#include <sys/utsname.h>

#include <string>

#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

std::string canonical(const std::string& text) {
  const auto reference = ImageReference::parse(text);
  return reference ? reference->canonical() : "refused: " + reference.error().message();
}

bool reference_refused(const std::string& text, const std::string& reason) {
  return refused(ImageReference::parse(text), reason);
}

}  // namespace

TEST_CASE("reference_forms_have_one_canonical_name") {
  CHECK(canonical("ubuntu") == "docker.io/library/ubuntu:latest");
  CHECK(canonical("docker://ubuntu:22.04") == "docker.io/library/ubuntu:22.04");
  CHECK(canonical("nvidia/cuda:12") == "docker.io/nvidia/cuda:12");
  CHECK(canonical("docker.io/ubuntu") == "docker.io/library/ubuntu:latest");
  CHECK(canonical("index.docker.io/ubuntu") == "docker.io/library/ubuntu:latest");
  CHECK(canonical("registry-1.docker.io/library/ubuntu") == "docker.io/library/ubuntu:latest");
  CHECK(canonical("registry:5000/pytorch:1.13") == "registry:5000/pytorch:1.13");
  CHECK(canonical("registry:5000#pytorch:1.13") == "registry:5000/pytorch:1.13");
  CHECK(canonical("nvcr.io#nvidia/pytorch:24.03-py3") == "nvcr.io/nvidia/pytorch:24.03-py3");
  CHECK(canonical("NVCR.IO/nvidia/pytorch") == "nvcr.io/nvidia/pytorch:latest");
  CHECK(canonical("localhost/x") == "localhost/x:latest");
  CHECK(canonical("[::1]:5000/a/b:c") == "[::1]:5000/a/b:c");
  CHECK(canonical("myhost#a/b") == "myhost#a/b:latest");
  CHECK(canonical(canonical("myhost#a/b")) == "myhost#a/b:latest");
  CHECK(canonical("x/y:1@sha256:" + kHex) == "docker.io/x/y@sha256:" + kHex);
  CHECK(canonical("a__b/c-d--e.f:T_1.x-") == "docker.io/a__b/c-d--e.f:T_1.x-");
}

TEST_CASE("reference_user_registry_digest_and_file_name") {
  const auto nvidia =
      ImageReference::parse("docker://$oauthtoken@nvcr.io#nvidia/cuda:12@sha256:" + kHex).value();
  CHECK(nvidia.user == "$oauthtoken");
  CHECK(nvidia.tag_ignored);
  CHECK(nvidia.tag_or_digest() == "sha256:" + kHex);
  CHECK(ImageReference::parse("alice@ubuntu:22.04").value().user == "alice");
  CHECK(ImageReference::parse("x", "reg:5000").value().canonical() == "reg:5000/x:latest");
  CHECK(ImageReference::parse("ubuntu").value().api_host() == "registry-1.docker.io");
  CHECK(ImageReference::parse("r:1/a/b:t").value().ref_file_name() == "r:1%2Fa%2Fb:t");
  CHECK_FALSE(ImageReference::parse("r:1/" + std::string(250, 'a')).value().ref_file_name());
}

TEST_CASE("reference_broken_is_refused_with_rule") {
  CHECK(reference_refused("", "is empty"));
  CHECK(reference_refused("Ubuntu", "no upper-case letters (hint: write \"ubuntu\")"));
  CHECK(reference_refused("a//b", "empty component"));
  CHECK(reference_refused("a/b/", "empty component"));
  CHECK(reference_refused("-a", "must stand between"));
  CHECK(reference_refused("a..b", "must stand between"));
  CHECK(reference_refused("a___b", "must stand between"));
  CHECK(reference_refused("a$b", "consist of"));
  CHECK(reference_refused("a:", "tag after ':' is empty"));
  CHECK(reference_refused("a:" + std::string(129, 't'), "at most 128"));
  CHECK(reference_refused("a:-x", "a tag begins with"));
  CHECK(reference_refused("a:t g", "spaces"));
  CHECK(reference_refused("a\nb", "spaces"));
  CHECK(reference_refused(std::string("a\0b", 3), "\\x00"));
  CHECK(reference_refused("a\x1b[2J", "\\x1b"));
  CHECK(reference_refused("a\xff", "\\xff"));
  CHECK(reference_refused(std::string(1 << 20, 'a'), "longer than 4096"));
  CHECK(reference_refused(std::string(256, 'a'), "at most 255"));
  CHECK(reference_refused(std::string(250, 'a'), "at most 255"));  // with library/
  CHECK(reference_refused("r:0/a", "port"));
  CHECK(reference_refused("r:70000/a", "port"));
  CHECK(reference_refused("r:abc/a", "port"));
  CHECK(reference_refused("[::g]:1/a", "IPv6"));
  CHECK(reference_refused("[::1/a", "closing"));
  CHECK(reference_refused("-r.x/a", "not a host name"));
  CHECK(reference_refused("registry:5000/", "missing"));
  CHECK(reference_refused("a@sha256:" + std::string(63, 'a'), "64 hexadecimal"));
  CHECK(reference_refused("a@sha256:" + std::string(64, 'A'), "lower-case"));
  CHECK(reference_refused("a@md5:" + kHex, "only sha256"));
  CHECK(reference_refused("a/b@c", "expected a digest"));
  CHECK(reference_refused("a/b@1.2", "(hint: a tag follows a colon: NAME:TAG)"));
  CHECK(reference_refused("r:5000:a/b:1", "(hint: an image is REGISTRY/NAME:TAG)"));
  CHECK(reference_refused("a@sha256:12", "(hint: scontainer inspect prints an image's digest)"));
}

TEST_CASE("reference_password_is_refused_and_not_repeated") {
  for (const char* text : {"alice:secret@registry/x", "docker://alice:secret@registry:5000/x:1"}) {
    const auto reference = ImageReference::parse(text);
    REQUIRE_FALSE(reference);
    CHECK(reference.error().message().find("secret") == std::string::npos);
    CHECK(reference.error().message().find("password") != std::string::npos);
  }
}

TEST_CASE("platform_of_host_has_no_variant") {
  utsname system{};
  REQUIRE(::uname(&system) == 0);
  const std::string machine = system.machine;
  CHECK(Platform::host().str() == "linux/" + (machine == "x86_64"    ? "amd64"
                                              : machine == "aarch64" ? "arm64"
                                                                     : machine));
}

TEST_CASE("ref_file_of_other_platform_differs") {
  const auto reference = ImageReference::parse("r:1/a:t").value();
  CHECK(ref_file_of(reference, Platform::host()) == "r:1%2Fa:t");
  CHECK(ref_file_of(reference, Platform::parse("linux/riscv64").value()) ==
        "r:1%2Fa:t@linux%2Friscv64");
  CHECK_FALSE(ref_file_of(ImageReference::parse("r:1/" + std::string(240, 'a')).value(),
                          Platform::parse("linux/s390x").value()));
}

TEST_CASE("ref_file_of_tag_with_digest_has_both") {
  const auto tag = ImageReference::parse("r:1/a:t").value();
  const Digest digest = Digest::parse("sha256:" + std::string(64, 'a')).value();
  CHECK(ref_file_of(tag, Platform::host(), digest) == "r:1%2Fa:t@" + digest.str());
  CHECK(ref_file_of(tag, Platform::parse("linux/s390x").value(), digest) ==
        "r:1%2Fa:t@linux%2Fs390x@" + digest.str());
  CHECK(
      ref_file_of(ImageReference::parse("r:1/" + std::string(170, 'a')).value(), Platform::host()));
  CHECK_FALSE(ref_file_of(ImageReference::parse("r:1/" + std::string(180, 'a')).value(),
                          Platform::host(), digest));
}

TEST_CASE("resolved_tag_applies_to_its_tag_only") {
  const auto tag = ImageReference::parse("alice@r:1/a/b:t").value();
  const Digest one = Digest::parse("sha256:" + std::string(64, 'a')).value(),
               other = Digest::parse("sha256:" + std::string(64, 'b')).value();
  const std::string words =
      "r:1/a/c:t@" + other.str() + " r:1/a/b:t@" + one.str() + " r:1/a/b:t2@" + other.str();
  CHECK(resolved_tag(tag, words) == one);
  CHECK(resolved_tag(ImageReference::parse("r:1/a/b:t2").value(), words) == other);
  CHECK_FALSE(resolved_tag(ImageReference::parse("r:1/a/b:t@" + other.str()).value(), words));
  CHECK_FALSE(resolved_tag(ImageReference::parse("r:1/a/b").value(), words));
  for (const char* text :
       {"", " ", "@", "r:1/a/b:t", "r:1/a/b:t@", "r:1/a/b:t@sha256:a", "r:1/a/b:t @"})
    CHECK_FALSE(resolved_tag(tag, text));
  CHECK_FALSE(resolved_tag(tag, "x" + words.substr(0, words.find(' '))));
  CHECK_FALSE(resolved_tag(tag, "r:1/a/b:t@" + one.str() + "0"));
}

TEST_CASE("import_request_survives_serialization") {
  ImportRequest request;
  request.image = "registry:5000/x:1";
  request.platform = Platform::parse("linux/arm64/v8").value();
  request.config = "/etc/x y";
  request.pull = PullPolicy::missing;
  request.uid = 1000;
  request.since = 1700000000;
  request.only_digest = true;
  request.step_nodes = 1024;
  request.resolved = Digest::parse("sha256:" + std::string(64, 'c')).value();
  const auto back = ImportRequest::parse(request.serialize()).value();
  CHECK(back.image == request.image);
  CHECK(back.platform.str() == "linux/arm64/v8");
  CHECK(back.config == "/etc/x y");
  CHECK(back.pull == PullPolicy::missing);
  CHECK(back.uid == 1000);
  CHECK(back.since == 1700000000);
  CHECK(back.only_digest);
  CHECK(back.resolved == request.resolved);
  CHECK(back.step_nodes == 1024);
  CHECK_FALSE(ImportRequest::parse(std::string("image=x\0step_nodes=\0", 20)));
  CHECK_FALSE(ImportRequest::parse(std::string("image=x\0resolved=y\0", 19)));
  CHECK_FALSE(ImportRequest::parse("image=x"));
  CHECK_FALSE(ImportRequest::parse(std::string("image=x\0image=y\0", 16)));
  CHECK_FALSE(ImportRequest::parse(std::string("image=x\0other=y\0", 16)));
  CHECK_FALSE(ImportRequest::parse(std::string("image=x\0since=1 \0", 17)));
  CHECK_FALSE(Platform::parse("linux"));
  CHECK_FALSE(Platform::parse("linux/a/b/c"));
}

TEST_CASE("tag_answer_is_fresh_within_ttl") {
  const TagAge age{.asked_at = 1000, .now = 1059};
  CHECK(age.is_fresh(60, 0, {}));
  CHECK_FALSE(age.is_fresh(59, 0, {}));
  CHECK_FALSE(age.is_fresh(0, 60, {}));    // the job's submission time is unknown
  CHECK_FALSE(age.is_fresh(0, 60, 1000));  // within the same second
  CHECK(age.is_fresh(0, 60, 999));
  CHECK_FALSE(age.is_fresh(0, 59, 999));
  CHECK_FALSE(TagAge{.asked_at = 1000, .now = 990}.is_fresh(0, 60, 900));  // the clock was set back
  CHECK(TagAge::parse_time("17") == 17);
  for (const char* text : {"", "x", "17x", "1e3", " 17", "99999999999999999999"})
    CHECK_FALSE(TagAge::parse_time(text));
}
