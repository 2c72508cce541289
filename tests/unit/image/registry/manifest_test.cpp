#include "image/registry/manifest.hpp"
#include "image/registry/json.hpp"
#include "unit/image/helpers.hpp"
#include "unit/test.hpp"

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

TEST_CASE("manifests and indexes are told apart by their media type") {
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

TEST_CASE("urls and embedded data of a descriptor are ignored") {
  const auto parsed = parse_manifest(manifest(descriptor("application/vnd.oci.image.layer.v1.tar",
                                                         R"(,"urls":["http://evil"],"data":"!!")")),
                                     kOci, "m");
  CHECK(parsed);
}

TEST_CASE("json that readers could read in two ways is refused") {
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

TEST_CASE("an image for this machine is chosen and others are listed") {
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
  const auto none = choose_platform(index_of({"linux/arm64", "linux/s390x"}),
                                    Platform{"linux", "amd64", ""}, "index \"i\"");
  CHECK(none.error().message() ==
        "index \"i\": has no image for linux/amd64, only for linux/arm64, linux/s390x (hint: "
        "choose a tag built for linux/amd64)");
  CHECK(none.error().kind() == ErrorKind::invalid);  // not "not found": a login node of another
                                                     // architecture must not refuse the job
}

TEST_CASE("a node takes what its own architecture runs, whatever variant the index names it with") {
  for (const char* name : {"linux/arm64", "linux/arm64/v8"})
    CHECK(chosen(index_of({"linux/amd64", name, "linux/arm/v7"}), "linux/arm64") == 1);
  CHECK(chosen(index_of({"linux/arm64/v9"}), "linux/arm64") ==
        999);  // not every machine of the architecture runs it
  CHECK(chosen(index_of({"linux/arm/v7", "linux/arm/v8"}), "linux/arm64") == 999);
  CHECK(chosen(index_of({"linux/arm64", "linux/arm64/v8"}), "linux/arm64/v8") == 1);
  CHECK(chosen(index_of({"linux/amd64", "linux/arm64"}), "linux/arm64/v8") == 1);
  CHECK(choose_platform(index_of({"linux/s390x", "linux/arm64/v8", "linux/amd64"}),
                        Platform::host(), "i"));
}

TEST_CASE("an image configuration gives settings and nothing is split") {
  const auto config =
      parse_image_config(
          R"({"os":"linux","architecture":"amd64","rootfs":{"diff_ids":[")" + kA +
              R"("]},"config":{"Env":["A=b=c","novalue","=x","M=one\ntwo"],"Entrypoint":["/e"],"Cmd":null,"WorkingDir":"/w","User":"9:9"}})",
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
