#include "reference/location.hpp"
#include "unit/catch2_compat.hpp"

#include <string>

#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

using Kind = ImageLocation::Kind;

/// Returns KIND PATH REFERENCE, or the reason of the refusal.
std::string parts(const std::string& text) {
  const auto location = ImageLocation::parse(text);
  if (!location) return "refused: " + location.error().message();
  static const char* const kNames[] = {"registry", "oci",    "oci-archive", "docker-archive",
                                       "dockerd",  "podman", "path",        "remote_file"};
  const std::string second =
      location->kind == Kind::registry ? location->name.canonical() : location->path;
  return std::string(kNames[static_cast<int>(location->kind)]) + "|" + second + "|" +
         location->reference;
}

bool location_refused(const std::string& text, const std::string& reason) {
  return refused(ImageLocation::parse(text), reason);
}

}  // namespace

TEST_CASE("location_form_follows_its_prefix") {
  CHECK(parts("ubuntu") == "registry|docker.io/library/ubuntu:latest|");
  CHECK(parts("docker://nvcr.io#nvidia/cuda:12") == "registry|nvcr.io/nvidia/cuda:12|");
  CHECK(parts("oci") == "registry|docker.io/library/oci:latest|");
  CHECK(parts("docker://oci:1") == "registry|docker.io/library/oci:1|");
  CHECK(parts("docker:dind") == "registry|docker.io/library/docker:dind|");
  CHECK(parts("oci:layout") == "oci|layout|");
  CHECK(parts("oci:/a/b:v1") == "oci|/a/b|v1");
  CHECK(parts("oci:~/images/x:sha256:" + kHex) == "oci|~/images/x|sha256:" + kHex);
  CHECK(parts("oci-archive:x.tar") == "oci-archive|x.tar|");
  CHECK(parts("oci-archive:../x y.tar:registry:5000/a/b:v1") ==
        "oci-archive|../x y.tar|registry:5000/a/b:v1");
  CHECK(parts("docker-archive:/x.tar.gz:a/b:v1") == "docker-archive|/x.tar.gz|a/b:v1");
  CHECK(parts("dockerd://ubuntu:22.04") == "dockerd||ubuntu:22.04");
  CHECK(parts("podman://localhost/my/image:1") == "podman||localhost/my/image:1");
  for (const char* path : {"./x.sqsh", "../x", "/x", "~/x.sif", ".hidden", "./a:b", "/images/dir/",
                           "/.", ".", "./caf\xc3\xa9"}) {
    CHECK(parts(path) == "path|" + std::string(path) + "|");
  }
}

TEST_CASE("location_canonical_text_is_stable") {
  for (const char* text : {"docker.io/library/ubuntu:latest", "myhost#a/b:latest", "oci:dir",
                           "oci:dir:v1", "oci-archive:/x y:a/b:c", "docker-archive:x.tar",
                           "dockerd://ubuntu", "podman://localhost/x:1", "./x", "~/x", "/a:b"}) {
    CHECK(ImageLocation::parse(text).value().canonical() == text);
  }
  CHECK(ImageLocation::parse("ubuntu").value().canonical() == "docker.io/library/ubuntu:latest");
  CHECK(ImageLocation::parse("alice@x:1.tar").value().canonical() == "docker.io/library/x:1.tar");
  CHECK(ImageLocation::parse("docker.io/library/x:1.tar").value().canonical() ==
        "docker.io/library/x:1.tar");
  CHECK(ImageLocation::parse("alice@ubuntu").value().name.user == "alice");
  CHECK(ImageLocation::parse("ubuntu", "reg:5000").value().canonical() == "reg:5000/ubuntu:latest");
}

TEST_CASE("location_with_error_is_refused_with_reason") {
  CHECK(location_refused("oci:", "the path is missing"));
  CHECK(location_refused("oci::v1", "the path is missing"));
  CHECK(location_refused("oci-archive://x.tar", "follow // (hint: oci-archive:x.tar)"));
  CHECK(location_refused("docker-archive:///x.tar", "(hint: docker-archive:/x.tar)"));
  CHECK(location_refused("oci:dir:", "name after the last ':' is missing (hint: oci:DIR[:REF])"));
  CHECK(location_refused("docker-archive:x.tar:-v", "begins with"));
  CHECK(location_refused("docker-archive:x.tar:a b", "consists of"));
  CHECK(location_refused("oci:a\nb", "control characters"));
  CHECK(location_refused("./a\x1b[2J", "control characters"));
  CHECK(location_refused("~alice/x.sqsh", "use the absolute path"));
  CHECK(location_refused("~", "home directory"));
  CHECK(location_refused("podman://", "the image's name is missing"));
  CHECK(location_refused("podman://--help", "begins with a letter or a digit"));
  CHECK(location_refused("podman://a;b", "consists of"));
  CHECK(location_refused("dockerd://" + std::string(513, 'a'), "more than 512"));
}

TEST_CASE("location_of_apptainer_library_gets_sif_hint") {
  for (const char* text :
       {"library://alpine", "library://lolcow/default:1", "shub://GodloveD/lolcow"})
    CHECK(
        location_refused(text, "(hint: apptainer pull writes a .sif: use that file, ./FILE.sif)"));
  CHECK(location_refused("s3://bucket/x", "unknown scheme \"s3:\" (hint: [docker://]NAME"));
}

TEST_CASE("location_slash_beside_hash_is_explained") {
  for (const char* text :
       {"reg:5000#/app:1", "reg:5000/#app:1", "reg:5000#//app:1", "reg:5000/#/app:1"})
    CHECK(location_refused(text, "not at both (hint: write reg:5000/app:1)"));
  CHECK(location_refused("docker://reg#/team/app", "not at both (hint: write reg#team/app)"));
  CHECK(location_refused("alice@reg:5000#/app", "not at both (hint: write reg:5000/app)"));
}

TEST_CASE("location_file_without_path_gets_suggestion") {
  CHECK(location_refused("foo.sqsh", "did you mean \"./foo.sqsh\"?"));
  CHECK(location_refused("images/foo.sif", "did you mean \"./images/foo.sif\"?"));
  CHECK(location_refused("foo.tar.gz", "did you mean \"./foo.tar.gz\"?"));
  CHECK(location_refused("dir/", "did you mean \"./dir/\"?"));
  CHECK(parts("foo.sqsh:latest") == "registry|docker.io/library/foo.sqsh:latest|");
  CHECK(parts("docker://foo.sqsh") == "registry|docker.io/library/foo.sqsh:latest|");
}

// facts/security.md, section 3 A. The second half of row 1 (an option given twice) is in
// spank_options_test.cpp.

// outcome 1 refused: empty image option; option twice
TEST_CASE("location_empty_is_refused") { CHECK(location_refused("", "is empty")); }

// outcome 2 refused: repository with upper case, empty component, leading -
TEST_CASE("location_repository_name_breaking_rules_is_refused") {
  CHECK(location_refused("Ubuntu", "no upper-case letters"));
  CHECK(location_refused("a//b", "empty component"));
  CHECK(location_refused("r.x/a/", "did you mean \"./r.x/a/\"?"));
  CHECK(location_refused("docker://a/b/", "empty component"));
  CHECK(location_refused("-a", "must stand between"));
}

// outcome 3 refused: tag too long, with / or blank
TEST_CASE("location_tag_too_long_or_invalid_is_refused") {
  CHECK(location_refused("a:" + std::string(129, 't'), "at most 128"));
  CHECK(location_refused("a:b/c", "port"));
  CHECK(location_refused("docker.io/a:b/c", "tags consist of"));
  CHECK(location_refused("a:t g", "spaces"));
}

// outcome 4 refused: digest of wrong length, case, algorithm
TEST_CASE("location_digest_malformed_is_refused") {
  CHECK(location_refused("a@sha256:" + std::string(63, 'a'), "64 hexadecimal"));
  CHECK(location_refused("a@sha256:" + std::string(64, 'A'), "lower-case"));
  CHECK(location_refused("a@md5:" + kHex, "only sha256"));
}

// outcome 5 accepted: tag and digest
TEST_CASE("location_digest_beats_tag") {
  const auto location = ImageLocation::parse("a:1@sha256:" + kHex).value();
  CHECK(location.name.digest.has_value());
  CHECK(location.name.tag_ignored);
  CHECK(location.canonical() == "docker.io/library/a@sha256:" + kHex);
}

// outcome 6 refused: ports 0, 70000, abc; IPv6 is accepted
TEST_CASE("location_ports_and_ipv6_are_checked") {
  CHECK(location_refused("r:0/a", "port"));
  CHECK(location_refused("r:70000/a", "port"));
  CHECK(location_refused("r:abc/a", "port"));
  CHECK(parts("[::1]:5000/a") == "registry|[::1]:5000/a:latest|");
}

// outcome 7 refused: password in a reference
TEST_CASE("location_password_is_refused_and_not_repeated") {
  for (const char* text : {"alice:secret@registry/x", "docker://alice:secret@registry:5000/x:1",
                           "http://alice:secret@registry/x", "foo://alice:secret@registry/x",
                           "alice:secret@http://registry/x", "alice:secret@registry/x.tar",
                           "dockerd://alice:secret@registry/x y", "alice:secret@registry/dir/"}) {
    const auto location = ImageLocation::parse(text);
    INFO(text);
    REQUIRE_FALSE(location);
    CHECK(location.error().message().find("secret") == std::string::npos);
  }
}

// outcome 8 refused: newline, ESC, NUL, invalid UTF-8
TEST_CASE("location_control_characters_are_refused_and_escaped") {
  CHECK(location_refused("a\nb", "\\n"));
  CHECK(location_refused("a\x1b[2J", "\\x1b"));
  CHECK(location_refused(std::string("a\0b", 3), "\\x00"));
  CHECK(location_refused("a\xff", "\\xff"));
}

// outcome 9 refused: 1 MiB reference; 10,000 mounts
TEST_CASE("location_of_1_mib_is_refused") {
  CHECK(location_refused(std::string(1 << 20, 'a'), "longer than 4096"));
  CHECK(location_refused("./" + std::string(1 << 20, 'a'), "longer than 4096"));
}

// outcome 10 refused: schemes without permission
TEST_CASE("location_unknown_scheme_is_refused_with_list") {
  CHECK(location_refused("file:///x", "unknown scheme \"file:\""));
  CHECK(location_refused("http://registry/x", "use docker://"));
  CHECK(location_refused("https://registry", "is not a URL of a file"));
  CHECK(location_refused("s3://a/b", "unknown scheme \"s3:\" (hint: [docker://]NAME, oci:DIR"));
  CHECK(location_refused("docker-daemon:x:1", "use dockerd://NAME"));
  CHECK(location_refused("containers-storage:x", "use podman://NAME"));
  CHECK(location_refused("dir:/x", "unknown scheme \"dir:\""));
}

TEST_CASE("location_remote_file_has_a_name_for_rules") {
  CHECK(parts("oras://alice@registry:5000/x") == "remote_file||oras://registry:5000/x:latest");
  CHECK(parts("https://Registry/a/b.sif?k=1") == "remote_file||https://Registry/a/b.sif?k=1");
  const std::string hex(64, 'a');
  const auto file = ImageLocation::parse("https://Registry:5000/a/b.sif#sha256=" + hex);
  REQUIRE(file);
  CHECK(file->name.registry == "registry:5000");
  CHECK(file->name.repository == "a/b.sif");
  CHECK(file->name.digest->hex() == hex);
  for (const char* text :
       {"https://", "https:///x", "https://registry/", "https://alice:secret@registry/x",
        "https://r/x#md5=1", "https://r/a b"}) {
    const auto refused = ImageLocation::parse(text);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message().find("secret") == std::string::npos);
  }
}

// outcome 11 accepted: aliases of Docker Hub
TEST_CASE("location_docker_hub_names_are_one") {
  for (const char* text :
       {"ubuntu", "docker.io/ubuntu", "docker.io/library/ubuntu", "index.docker.io/ubuntu",
        "registry-1.docker.io/library/ubuntu", "docker://library/ubuntu:latest"}) {
    CHECK(parts(text) == "registry|docker.io/library/ubuntu:latest|");
  }
}

TEST_CASE("location_is_shown_without_secrets") {
  const std::string digest = "#sha256=" + kHex;
  CHECK(without_secrets("https://r/a/x.sqsh?sig=secret&b=1") == "https://r/a/x.sqsh");
  CHECK(without_secrets("https://r/x?sig=a#secret") == "https://r/x");
  CHECK(without_secrets("https://r/x#secret?y") == "https://r/x");
  CHECK(without_secrets("https://r/x?sig=secret" + digest) == "https://r/x" + digest);
  CHECK(without_secrets("https://alice:secret@r/x") == "https://r/x");
  CHECK(without_secrets("https://secret@r:5000/x@y") == "https://r:5000/x@y");
  CHECK(without_secrets("https://a@b@r/x") == "https://r/x");
  CHECK(without_secrets("https://r?sig=secret") == "https://r");
  CHECK(without_secrets("http://alice:secret@r/x?y") == "http://r/x");
  CHECK(without_secrets("oras://alice:secret@r/x:1?y=secret") == "oras://r/x:1");
  CHECK(without_secrets("docker://alice:secret@r/x") == "docker://r/x");
  CHECK(without_secrets("r.example/x?sig=secret") == "r.example/x");
  CHECK(without_secrets("alice:secret@r.example/x") == "r.example/x");
  // Names without a registry stay unchanged.
  for (const char* text :
       {"debian:12", "alice@nvcr.io/a/b:1", "nvcr.io#a/b:1", "docker://alice@r/x",
        "r:5000#a/b@sha256:00", "debian:12@sha256:00", "./what?.sqsh", "/a?b/c#d", "~/x?y",
        "oci:/a?b:c", "oci-archive:x?y", "docker-archive:a@b?c", "podman://a/b:1", ""}) {
    INFO(text);
    CHECK(without_secrets(text) == text);
    CHECK(name_without_secrets(text) == text);
  }
  CHECK(ImageLocation::parse("https://r/x.sqsh?sig=secret")->canonical() == "https://r/x.sqsh");
}

TEST_CASE("location_url_names_differ_by_query_without_secrets") {
  const auto one = name_without_secrets("https://r/x?file=a"),
             other = name_without_secrets("https://r/x?file=b");
  CHECK(one.starts_with("https://r/x?~"));
  CHECK(one.size() == other.size());
  CHECK(one != other);
  CHECK(without_secrets(one) == "https://r/x");
  CHECK(ImageLocation::parse(one).has_value());
  CHECK(name_without_secrets("https://r/x?sig=secret#sha256=" + kHex) ==
        "https://r/x#sha256=" + kHex);
}
