#include "registry/trust_policy.hpp"

#include "unit/catch2_compat.hpp"
#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

ImageReference image(const char* text) { return ImageReference::parse(text).value(); }

std::string scope_of(const TrustPolicy& policy, const char* text) {
  return policy.for_registry(image(text)).scope;
}

bool admits(SignedIdentity::Kind kind, const char* text, const char* signed_name,
            const char* reference = "", const char* signed_prefix = "") {
  const SignedIdentity identity{
      .kind = kind, .reference = reference, .signed_prefix = signed_prefix};
  return identity.admits(NamedReference::of(image(text)), signed_name);
}

const std::string kDigest = "@sha256:" + kHex;

}  // namespace

TEST_CASE("docker_reference_without_tag_or_digest_is_accepted") {
  CHECK(NamedReference::parse("ubuntu")->str() == "docker.io/library/ubuntu");
  CHECK(NamedReference::parse("index.docker.io/library/ubuntu:1")->str() ==
        "docker.io/library/ubuntu:1");
  CHECK(NamedReference::parse("registry:5000/a/b")->is_name_only());
  CHECK(NamedReference::parse("registry:5000/a/b:1" + kDigest)->str() ==
        "registry:5000/a/b:1" + kDigest);
  for (const char* text :
       {"", "docker://x", "r#x", "user@r/x", "r/x@sha256:1", "r/X", "r/x:", "a b"}) {
    CHECK_FALSE(NamedReference::parse(text).has_value());
  }
}

TEST_CASE("trust_policy_longest_scope_wins") {
  const auto policy = TrustPolicy::parse(R"({"default":[{"type":"reject"}],"transports":{"docker":{
    "": [{"type":"reject"}], "r.example.org:5000": [{"type":"reject"}],
    "r.example.org:5000/a": [{"type":"reject"}],
    "r.example.org:5000/a/b:1": [{"type":"reject"}], "*.example.org": [{"type":"reject"}],
    "*.org": [{"type":"reject"}],
    "docker.io/library/ubuntu": [{"type":"reject"}]}, "squashfs": {"/images": [{"type":"reject"}]},
    "oci": {},
    "oci-archive": {"/images/a.tar:1": [{"type":"reject"}]}}})")
                          .value();
  CHECK(scope_of(policy, "r.example.org:5000/a/b:1") == "docker \"r.example.org:5000/a/b:1\"");
  CHECK(scope_of(policy, "r.example.org:5000/a/b:2") == "docker \"r.example.org:5000/a\"");
  CHECK(scope_of(policy, "r.example.org:5000/ab:2") == "docker \"r.example.org:5000\"");
  CHECK(scope_of(policy, "r.example.org/a/b:1") == "docker \"*.example.org\"");
  CHECK(scope_of(policy, "example.org:80/a") == "docker \"*.org\"");
  CHECK(scope_of(policy, "example.com/a") == "docker");
  CHECK(scope_of(policy, "ubuntu") == "docker \"docker.io/library/ubuntu\"");
  CHECK(policy.for_local("squashfs", "/images/a/b.sqsh").scope == "squashfs \"/images\"");
  CHECK(policy.for_local("oci-archive", "/images/a.tar", "1").scope ==
        "oci-archive \"/images/a.tar:1\"");
  CHECK(policy.for_local("oci-archive", "/images/a.tar", "2").scope == "default");
  CHECK(policy.for_local("squashfs", "/images2/b.sqsh").scope == "default");
  CHECK(policy.for_local("squashfs", "images").scope == "default");
  CHECK(policy.for_local("oci", "/images").scope == "default");
  CHECK(policy.for_local("directory", "").scope == "default");
}

TEST_CASE("trust_policy_signed_identity_rules") {
  using Match = SignedIdentity::Kind;
  const std::string by_digest = "r:5000/a/b" + kDigest;
  CHECK(admits(Match::match_exact, "r:5000/a/b:1", "r:5000/a/b:1"));
  CHECK_FALSE(admits(Match::match_exact, "r:5000/a/b:1", "r:5000/a/b"));
  CHECK_FALSE(admits(Match::match_exact, by_digest.c_str(), "r:5000/a/b"));
  CHECK(admits(Match::match_exact, by_digest.c_str(), by_digest.c_str()));
  CHECK(admits(Match::match_repo_digest_or_exact, by_digest.c_str(), "r:5000/a/b:2"));
  CHECK_FALSE(admits(Match::match_repo_digest_or_exact, by_digest.c_str(), "r:5000/a:2"));
  CHECK_FALSE(admits(Match::match_repo_digest_or_exact, by_digest.c_str(), "r:5000/a/b"));
  CHECK_FALSE(admits(Match::match_repo_digest_or_exact, "r:5000/a/b:1", "r:5000/a/b:2"));
  CHECK_FALSE(admits(Match::match_repo_digest_or_exact, "r:5000/a/b:1", "r:5000/a/b"));
  CHECK(admits(Match::match_repository, "r:5000/a/b:1", "r:5000/a/b:2"));
  CHECK(admits(Match::match_repository, "ubuntu", "index.docker.io/library/ubuntu"));
  CHECK_FALSE(admits(Match::match_repository, "r:5000/a/b:1", "r:5000/a/bb"));
  CHECK_FALSE(admits(Match::match_repository, "r:5000/a/b:1", "not a reference"));
  CHECK(admits(Match::exact_reference, "x:1", "r/a:1", "r/a:1"));
  CHECK_FALSE(admits(Match::exact_reference, "x:1", "r/a", "r/a"));
  CHECK(admits(Match::exact_repository, "x:1", "r:1/a:7", "r:1/a"));
  CHECK_FALSE(admits(Match::exact_repository, "x:1", "r:1/ab", "r:1/a"));
  CHECK(admits(Match::remap_identity, "mirror:5000/ns/a:1", "vendor.com/a:1", "mirror:5000/ns",
               "vendor.com"));
  CHECK(admits(Match::remap_identity, "mirror:5000/ns2/a:1", "mirror:5000/ns2/a:1",
               "mirror:5000/ns", "vendor.com"));
  CHECK_FALSE(admits(Match::remap_identity, "mirror:5000/ns2/a:1", "vendor.com2/a:1",
                     "mirror:5000/ns", "vendor.com"));
  CHECK_FALSE(admits(Match::remap_identity, "mirror:5000/ns/a:1", "mirror:5000/ns/a:1",
                     "mirror:5000/ns", "vendor.com"));
  CHECK_FALSE(admits(Match::remap_identity, "mirror:5000/ns/a:1", "vendor/a:1", "mirror:5000/ns",
                     "vendor"));
}

TEST_CASE("trust_policy_is_as_strict_as_podman") {
  const auto refuses = [](const std::string& requirement, const char* why) {
    return refused(TrustPolicy::parse(R"({"default":[)" + requirement + "]}"), why);
  };
  CHECK(TrustPolicy::parse(
      R"({"default":[{"type":"insecureAcceptAnything"}],)"
      R"("transports":{"docker-daemon":{"":[{"type":"reject"}]}}})"));
  CHECK(refuses("", "default: is an empty list"));
  CHECK(refuses("7", "default[0]: is not an object"));
  CHECK(refuses("{}", "default[0].type: \"\" is unknown"));
  CHECK(refuses(R"({"type":"sigstoreSigned","keyPath":"/a","keyPaths":["/b"]})", "exactly one of"));
  CHECK(refuses(R"({"type":"sigstoreSigned","keyPath":"/a/../b"})", "has a part"));
  CHECK(refuses(
      R"({"type":"sigstoreSigned","keyPath":"/a","signedIdentity":{"type":"remapIdentity",)"
      R"("prefix":"a"}})",
      "signedPrefix"));
  CHECK(refuses(
      R"({"type":"sigstoreSigned","keyPath":"/a","signedIdentity":{"type":"matchExact","x":1}})",
      "x: is unknown"));
  CHECK(refused(TrustPolicy::parse(R"({"default":[{"type":"reject"}],"transports":{"docker":[]}})"),
                "is not an object"));
  CHECK(refused(
      TrustPolicy::parse(
          R"({"default":[{"type":"reject"}],"default":[{"type":"insecureAcceptAnything"}]})"),
      "default"));
}
