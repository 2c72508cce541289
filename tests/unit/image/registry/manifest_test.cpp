#include "registry/manifest.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/image/helpers.hpp"

using namespace spc;
using namespace spc::test;

namespace {

const std::string kA = "sha256:" + std::string(64, 'a');
const std::string kOci = "application/vnd.oci.image.manifest.v1+json";
const std::string kIndex = "application/vnd.oci.image.index.v1+json";

std::string descriptor(const std::string& type, const std::string& more = "") {
  return R"({"mediaType":")" + type + R"(","digest":")" + kA + R"(","size":10)" + more + "}";
}
const std::string kConfig = descriptor("application/vnd.oci.image.config.v1+json");
const std::string kLayer = descriptor("application/vnd.oci.image.layer.v1.tar+gzip");

std::string manifest(const std::string& layers, const std::string& more = "") {
  return R"({"schemaVersion":2,"config":)" + kConfig + R"(,"layers":[)" + layers + "]" + more + "}";
}

bool manifest_refused(const std::string& text, const std::string& reason,
                      const std::string& type = kOci) {
  return refused(parse_manifest(text, type, "manifest \"x\""), reason);
}

Index index_of(std::initializer_list<const char*> platforms) {
  Index index;
  for (const char* text : platforms) {
    Index::Entry entry;
    entry.has_platform = *text != '\0';
    if (entry.has_platform) entry.platform = Platform::parse(text).value();
    entry.descriptor.size = index.entries.size();
    index.entries.push_back(entry);
  }
  return index;
}

std::size_t chosen(const Index& index, const char* platform) {
  const auto entry = choose_platform(index, Platform::parse(platform).value(), "index");
  return entry ? entry->descriptor.size : 999;
}

}  // namespace

// outcome 59 accepted: null and unknown fields
// outcome 64 refused: manifest and index at once; contradictions; schemaVersion 3
TEST_CASE("manifest_and_index_differ_by_media_type") {
  const auto parsed = parse_manifest(manifest(kLayer + "," + kLayer), kOci, "m").value();
  REQUIRE(std::holds_alternative<Manifest>(parsed));
  CHECK(std::get<Manifest>(parsed).layers.size() == 2);
  CHECK(std::holds_alternative<Manifest>(
      parse_manifest(manifest(""), "application/json", "m").value()));
  CHECK(std::holds_alternative<Index>(
      parse_manifest(R"({"schemaVersion":2,"manifests":[]})", kIndex, "m").value()));
  CHECK(std::holds_alternative<Manifest>(
      parse_manifest(manifest(kLayer, R"(,"annotations":null,"subject":{"a":[1]})"), kOci, "m")
          .value()));
  CHECK(manifest_refused(manifest(kLayer, R"(,"manifests":[])"), "both a manifest and an index"));
  CHECK(manifest_refused(manifest(kLayer), "has the media type of an index but contains layers",
                         kIndex));
  CHECK(manifest_refused(manifest(kLayer, R"(,"mediaType":")" + kIndex + "\""), "has media type"));
  CHECK(
      manifest_refused(R"({"schemaVersion":2,"mediaType":"text/plain"})", "not a container image"));
}

TEST_CASE("manifest_urls_and_data_are_ignored") {
  const auto parsed = parse_manifest(manifest(descriptor("application/vnd.oci.image.layer.v1.tar",
                                                         R"(,"urls":["http://evil"],"data":"!!")")),
                                     kOci, "m");
  CHECK(parsed);
}

// outcome 61 refused: truncated, trailing, BOM, invalid UTF-8, NUL
// outcome 62 refused: keys given twice
TEST_CASE("manifest_with_ambiguous_json_is_refused") {
  CHECK(manifest_refused(manifest(kLayer, R"(,"layers":[])"), "given twice"));
  CHECK(manifest_refused(manifest(kLayer) + "{}", "not JSON"));
  CHECK(manifest_refused("\xef\xbb\xbf" + manifest(kLayer), "not a JSON object"));
  CHECK(manifest_refused("<html>", "HTML"));
  CHECK(manifest_refused("", "is empty"));
  CHECK(manifest_refused(std::string(100'000, '['), "not a JSON object"));
  CHECK(manifest_refused("{\"a\":" + std::string(100'000, '['), "32 levels"));
  CHECK(manifest_refused("{\"a\":\"\xc0\x80\"}", "not JSON"));
  std::string many = "{\"a\":[0";
  for (int i = 0; i < 200'001; ++i) many += ",0";
  CHECK(manifest_refused(many + "]}", "more than 200000 values"));
}

// outcome 50 accepted: other machines and attestations first
TEST_CASE("manifest_of_platform_is_chosen_others_listed") {
  CHECK(chosen(index_of({"linux/arm64", "linux/amd64"}), "linux/amd64") == 1);
  CHECK(chosen(index_of({"unknown/unknown", "linux/amd64"}), "linux/amd64") == 1);
  CHECK(chosen(index_of({"linux/amd64/v3", "linux/amd64"}), "linux/amd64") == 1);
  CHECK(chosen(index_of({"linux/amd64/v3"}), "linux/amd64") == 999);
  CHECK(chosen(index_of({"linux/amd64/v3"}), "linux/amd64/v3") == 0);
  CHECK(chosen(index_of({"linux/arm64/v8"}), "linux/arm64") == 0);
  CHECK(chosen(index_of({"linux/amd64", "linux/amd64/v2", "linux/amd64/v3"}), "linux/amd64") == 0);
  CHECK(chosen(index_of({"linux/amd64", "linux/amd64/v2", "linux/amd64/v4"}), "linux/amd64/v3") ==
        1);
  CHECK(chosen(index_of({"linux/arm/v5", "linux/arm/v6", "linux/arm64"}), "linux/arm/v7") == 1);
  CHECK(chosen(index_of({"linux/arm/v6", "linux/arm/v7"}), "linux/arm") == 1);
  CHECK(chosen(index_of({"linux/arm64/v8", "linux/arm64/v9.2"}), "linux/arm64/v9") == 0);
  CHECK(chosen(index_of({"windows/amd64"}), "linux/amd64") == 999);
  CHECK(chosen(index_of({""}), "linux/amd64") == 0);
  CHECK(chosen(index_of({"", ""}), "linux/amd64") == 999);
  CHECK(chosen(index_of({"", "unknown/unknown"}), "linux/amd64") == 0);
  CHECK(chosen(index_of({"unknown/unknown", "", "unknown/unknown"}), "linux/amd64") == 1);
  CHECK(chosen(index_of({"", "", "unknown/unknown"}), "linux/amd64") == 999);
  CHECK(chosen(index_of({"", "linux/arm64"}), "linux/amd64") == 999);
  const auto none = choose_platform(index_of({"linux/arm64", "linux/s390x"}),
                                    Platform{"linux", "amd64", ""}, "index \"i\"");
  CHECK(none.error().message() ==
        "index \"i\": has no image for linux/amd64, only for linux/arm64, linux/s390x (hint: "
        "choose a tag built for linux/amd64)");
  CHECK(none.error().kind() == ErrorKind::invalid);  // not not_found: a login node of another
                                                     // architecture must not refuse the job
}

TEST_CASE("manifest_of_own_architecture_matches_without_variant") {
  for (const char* name : {"linux/arm64", "linux/arm64/v8"})
    CHECK(chosen(index_of({"linux/amd64", name, "linux/arm/v7"}), "linux/arm64") == 1);
  CHECK(chosen(index_of({"linux/arm64/v9"}), "linux/arm64") ==
        999);  // not every machine of the architecture can run it
  CHECK(chosen(index_of({"linux/arm/v7", "linux/arm/v8"}), "linux/arm64") == 999);
  CHECK(chosen(index_of({"linux/arm64", "linux/arm64/v8"}), "linux/arm64/v8") == 1);
  CHECK(chosen(index_of({"linux/amd64", "linux/arm64"}), "linux/arm64/v8") == 1);
  CHECK(choose_platform(index_of({"linux/s390x", "linux/arm64/v8", "linux/amd64"}),
                        Platform::host(), "i"));
}

TEST_CASE("manifest_index_skips_attestations_and_empty_platforms") {
  const auto entry = [](const std::string& more) { return descriptor(kOci, more); };
  const auto chosen_of = [](const std::string& entries) {
    const auto parsed =
        parse_manifest(R"({"schemaVersion":2,"manifests":[)" + entries + "]}", kIndex, "m").value();
    return choose_platform(std::get<Index>(parsed), Platform::parse("linux/amd64").value(), "m");
  };
  const std::string attestation =
      entry(R"(,"annotations":{"vnd.docker.reference.type":"attestation-manifest"})");
  CHECK(chosen_of(entry("") + "," + attestation));
  CHECK(chosen_of(entry(R"(,"platform":{"os":"","architecture":""})") + "," + attestation));
  CHECK(chosen_of(entry(R"(,"platform":{"os":"linux","architecture":"x86_64"})") + "," +
                  entry(R"(,"platform":{"os":"linux","architecture":"aarch64"})")));
  CHECK(chosen_of(entry(R"(,"platform":{"architecture":"amd64"})")));
  CHECK_FALSE(chosen_of(attestation));
}

TEST_CASE("platform_aliases_have_one_normal_form") {
  const auto of_config = [](const std::string& members) {
    return parse_image_config(R"({"os":"linux",)" + members + R"(,"rootfs":{"diff_ids":[]}})", "c")
        .value()
        .platform.str();
  };
  CHECK(of_config(R"("architecture":"x86_64")") == "linux/amd64");
  CHECK(of_config(R"("architecture":"x86-64")") == "linux/amd64");
  CHECK(of_config(R"("architecture":"X86_64")") == "linux/amd64");
  CHECK(of_config(R"("architecture":"aarch64")") == "linux/arm64");
  CHECK(of_config(R"("architecture":"aarch64","variant":"8")") == "linux/arm64/v8");
  CHECK(of_config(R"("architecture":"armhf")") == "linux/arm/v7");
  CHECK(of_config(R"("architecture":"armel")") == "linux/arm/v6");
  CHECK(of_config(R"("architecture":"i386")") == "linux/386");
  CHECK(of_config(R"("architecture":"i686")") == "linux/386");
  CHECK(of_config(R"("architecture":"ppc64le")") == "linux/ppc64le");
  CHECK(Platform::parse("linux/x86_64").value().str() == "linux/amd64");
  CHECK(Platform::parse("linux/arm/7").value().str() == "linux/arm/v7");
}

TEST_CASE("image_config_gives_settings") {
  const auto config =
      parse_image_config(
          R"({"os":"linux","architecture":"amd64","rootfs":{"diff_ids":[")" + kA +
              R"("]},"config":{"Env":["A=b=c","novalue","=x","M=one\ntwo"],"Entrypoint":["/e"],)"
              R"("Cmd":null,"WorkingDir":"/w","User":"9:9"}})",
          "c")
          .value();
  CHECK(config.env == std::vector<std::string>{"A=b=c", "M=one\ntwo"});
  CHECK(config.entrypoint == std::vector<std::string>{"/e"});
  CHECK(config.cmd.empty());
  CHECK(config.workdir == "/w");
  CHECK(config.user == "9:9");
  CHECK(config.diff_ids.size() == 1);
  CHECK_FALSE(parse_image_config("{}", "c"));
  CHECK_FALSE(parse_image_config("", "c"));
  CHECK_FALSE(parse_image_config(R"({"rootfs":{"diff_ids":["sha256:short"]}})", "c"));
  CHECK_FALSE(
      parse_image_config(R"({"rootfs":{"diff_ids":[]},"config":{"WorkingDir":"a\u0000b"}})", "c"));
}
